#include "python/pieces.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crc32c/crc32c.hpp"
#include "highway_hash.hpp"
#include "permute.hpp"
#include "pieces.hpp"
#include "python/arrays.hpp"
#include "read_files.hpp"

namespace dlio {
namespace {

using Bounds = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Crcs = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Pieces, and the Python objects that they are of.
struct PiecesView {
  BufferView data;
  Bounds bounds;

  PiecesView(nb::handle object, Bounds array) : data(object), bounds(std::move(array)) {
    const std::int64_t* const first = bounds.data();
    const std::int64_t* const last = first + bounds.size();
    if (first == last || *first < 0 || !std::is_sorted(first, last) || *(last - 1) > size()) {
      throw nb::value_error("bounds: expected ascending offsets within the data");
    }
  }

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(data.bytes().size); }
  Pieces pieces() const noexcept {
    return {reinterpret_cast<const char*>(data.bytes().data), bounds.data(), bounds.size() - 1};
  }
};

std::string system_path(nb::handle path) {
  if (!PyUnicode_Check(path.ptr())) throw nb::type_error("folder: expected a text");
  const nb::object bytes = nb::steal(PyUnicode_EncodeFSDefault(path.ptr()));
  if (!bytes) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

char* kept_buffer(std::size_t capacity) {
  thread_local std::unique_ptr<char[]> buffer;
  thread_local std::size_t held = 0;
  if (held < capacity) {
    buffer.reset(new char[capacity]);
    held = capacity;
  }
  return buffer.get();
}

nb::tuple to_python(const std::vector<FileRead>& files, const char* buffer) {
  std::int64_t* ends = nullptr;
  nb::object bounds = new_array({files.size() + 1}, ends);
  nb::list unusual;
  for (std::size_t i = 0; i < files.size(); ++i) {
    ends[i + 1] = ends[i] + static_cast<std::int64_t>(files[i].size);
    if (files[i].error != 0 || files[i].descriptor >= 0) {
      unusual.append(nb::make_tuple(i, files[i].error, files[i].descriptor));
    }
  }
  return nb::make_tuple(nb::bytes(buffer, static_cast<std::size_t>(ends[files.size()])), bounds, unusual);
}

nb::tuple read_all_files(nb::handle folder, nb::handle names, Bounds bounds, std::size_t room, std::size_t capacity) {
  if (room == 0 || room > capacity) throw nb::value_error("room: expected 1 to capacity");
  const std::string path = system_path(folder);
  const PiecesView view(names, std::move(bounds));
  const Pieces all = view.pieces();
  if (std::memchr(all.begin(0), 0, static_cast<std::size_t>(all.bounds[all.count] - all.bounds[0])) != nullptr) {
    throw nb::value_error("names: embedded null byte");
  }
  char* const buffer = kept_buffer(capacity);
  std::vector<FileRead> files;
  {
    nb::gil_scoped_release unlocked;
    files = read_files(path.c_str(), all, room, buffer, capacity);
  }
  try {
    return to_python(files, buffer);
  } catch (...) {
    for (const FileRead& file : files) close_file(file);
    throw;
  }
}

// Seconds in which this thread did not work, from some begin on.
double seconds_waited() noexcept {
  timespec now{};
  timespec worked{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return static_cast<double>(now.tv_sec - worked.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - worked.tv_nsec);
}

nb::tuple read_all_ranges(const Bounds& descriptors, const Bounds& starts, const Bounds& sizes, const Bytes& out,
                          const Bounds& places, const std::optional<Crcs>& crcs) {
  const Ranges ranges{descriptors.data(), starts.data(), sizes.data(), places.data(), starts.size()};
  if (descriptors.size() != ranges.count || sizes.size() != ranges.count || places.size() != ranges.count ||
      (crcs && crcs->size() != ranges.count)) {
    throw nb::value_error("descriptors, sizes, places, crcs: expected one for each start");
  }
  const auto room = static_cast<std::int64_t>(out.size());
  for (std::size_t i = 0; i < ranges.count; ++i) {
    const auto [start, size, place] = std::tuple(ranges.starts[i], ranges.sizes[i], ranges.places[i]);
    const std::int64_t descriptor = ranges.descriptors[i];
    if (descriptor < 0 || descriptor > std::numeric_limits<int>::max()) {
      throw nb::value_error("descriptors: expected open files");
    }
    if (start < 0 || start > std::numeric_limits<std::int64_t>::max() - room) {
      throw nb::value_error("starts: expected offsets in a file");
    }
    if (size < 0 || size > room || place < 0 || place > room - size) {
      throw nb::value_error("sizes, places: expected ranges of out");
    }
  }
  std::int64_t* counts = nullptr;
  nb::object result = new_array({ranges.count}, counts);
  std::size_t done = 0;
  int error = 0;
  double waited = 0;
  {
    nb::gil_scoped_release unlocked;
    const double before = seconds_waited();
    done = read_ranges(ranges, reinterpret_cast<char*>(out.data()), counts, crcs ? crcs->data() : nullptr);
    if (done < ranges.count) error = errno;
    waited = seconds_waited() - before;
  }
  return nb::make_tuple(result, done, error, waited);
}

nb::object permute_all(const Bounds& positions, std::int64_t size, const Keys& keys) {
  RoundKeys rounds{};
  if (size < 2 || keys.size() != rounds.size()) throw nb::value_error("size, keys: expected 2 or more, and 8 keys");
  std::copy_n(keys.data(), rounds.size(), rounds.begin());
  const auto outside = [size](std::int64_t position) { return position < 0 || position >= size; };
  if (std::any_of(positions.data(), positions.data() + positions.size(), outside)) {
    throw nb::value_error("positions: expected 0 to size");
  }
  std::int64_t* places = nullptr;
  nb::object result = new_array({positions.size()}, places);
  {
    nb::gil_scoped_release unlocked;
    permute(positions.data(), positions.size(), static_cast<std::uint64_t>(size), rounds, places);
  }
  return result;
}

void extend_all_crcs(nb::handle data, Bounds bounds, const Crcs& crcs) {
  const PiecesView view(data, std::move(bounds));
  if (crcs.size() != view.pieces().count) throw nb::value_error("crcs: expected one for each piece");
  nb::gil_scoped_release unlocked;
  extend_crcs(view.pieces(), crcs.data());
}

constexpr std::size_t kMuch = std::size_t{32} << 10;  // a checksum takes as long as it takes to get the lock back

std::uint32_t extended_crc(nb::handle data, std::uint32_t crc) {
  const BufferView view(data);
  const auto [bytes, size] = view.bytes();
  if (size < kMuch) return extend_crc(crc, reinterpret_cast<const char*>(bytes), size);
  nb::gil_scoped_release unlocked;
  return extend_crc(crc, reinterpret_cast<const char*>(bytes), size);
}

std::uint64_t hash_of(nb::handle data, const HighwayKey& key) {
  const BufferView view(data);
  const auto [bytes, size] = view.bytes();
  if (size < kMuch) return highway_hash(key, bytes, size);
  nb::gil_scoped_release unlocked;
  return highway_hash(key, bytes, size);
}

nb::bytes place_all(std::size_t size, const nb::list& columns) {
  std::vector<std::pair<PiecesView, Bounds>> views;
  for (nb::handle each : columns) {
    const auto [data, bounds, offsets] = nb::cast<std::tuple<nb::object, Bounds, Bounds>>(each);
    views.emplace_back(PiecesView(data, bounds), offsets);
    const Pieces pieces = views.back().first.pieces();
    if (offsets.size() != pieces.count) throw nb::value_error("offsets: expected one for each piece");
    for (std::size_t i = 0; i < pieces.count; ++i) {
      const std::int64_t offset = offsets.data()[i];
      if (offset < 0 || pieces.size(i) > size || static_cast<std::size_t>(offset) > size - pieces.size(i)) {
        throw nb::value_error("offsets: expected pieces within the size");
      }
    }
  }
  nb::object joined = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!joined) throw nb::python_error();
  char* const out = PyBytes_AsString(joined.ptr());
  {
    nb::gil_scoped_release unlocked;
    std::memset(out, 0, size);
    for (const auto& [view, offsets] : views) place(view.pieces(), offsets.data(), out);
  }
  return nb::borrow<nb::bytes>(joined);
}

}  // namespace

void bind_pieces(nb::module_& module) {
  using namespace nb::literals;
  module.def("read_files", read_all_files, "folder"_a, "names"_a, "bounds"_a.noconvert(), "room"_a, "capacity"_a);
  module.def("read_ranges", read_all_ranges, "descriptors"_a.noconvert(), "starts"_a.noconvert(), "sizes"_a.noconvert(),
             "out"_a.noconvert(), "places"_a.noconvert(), "crcs"_a.noconvert().none());
  module.def("permute", permute_all, "positions"_a.noconvert(), "size"_a, "keys"_a.noconvert());
  module.def("crc32c", extended_crc, "data"_a, "crc"_a = 0);
  module.def("extend_crcs", extend_all_crcs, "data"_a, "bounds"_a.noconvert(), "crcs"_a.noconvert());
  module.def("highway_hash", hash_of, "data"_a, "key"_a);
  module.def("place", place_all, "size"_a, "columns"_a);
}

}  // namespace dlio
