#include "python/pieces.hpp"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>

#include "pieces.hpp"
#include "python/arrays.hpp"
#include "read_files.hpp"

namespace dlio {
namespace {

using Bounds = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

void extend_all_crcs(nb::handle data, Bounds bounds, const Crcs& crcs) {
  const PiecesView view(data, std::move(bounds));
  if (crcs.size() != view.pieces().count) throw nb::value_error("crcs: expected one for each piece");
  nb::gil_scoped_release unlocked;
  extend_crcs(view.pieces(), crcs.data());
}

nb::bytes interleave_columns(const nb::list& columns) {
  std::vector<PiecesView> views;
  std::vector<Column> parts;
  for (nb::handle each : columns) {
    const auto [data, bounds, multiple] = nb::cast<std::tuple<nb::object, Bounds, std::size_t>>(each);
    if (multiple == 0) throw nb::value_error("multiple: expected 1 or more");
    views.emplace_back(data, bounds);
    parts.push_back({views.back().pieces(), multiple});
    if (parts.back().pieces.count != parts[0].pieces.count) throw nb::value_error("columns: of different lengths");
  }
  nb::object joined =
      nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(interleave(parts, nullptr))));
  if (!joined) throw nb::python_error();
  char* const out = PyBytes_AsString(joined.ptr());
  {
    nb::gil_scoped_release unlocked;
    interleave(parts, out);
  }
  return nb::borrow<nb::bytes>(joined);
}

}  // namespace

void bind_pieces(nb::module_& module) {
  using namespace nb::literals;
  module.def("read_files", read_all_files, "folder"_a, "names"_a, "bounds"_a.noconvert(), "room"_a, "capacity"_a);
  module.def("extend_crcs", extend_all_crcs, "data"_a, "bounds"_a.noconvert(), "crcs"_a.noconvert());
  module.def("interleave", interleave_columns, "columns"_a);
}

}  // namespace dlio
