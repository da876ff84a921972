#include "read_files.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "crc32c/crc32c.hpp"

namespace dlio {
namespace {

// Several files from memory take less; where one takes longer, threads read the others side by side.
constexpr std::chrono::milliseconds kEnough{5};

constexpr std::int64_t kRunBytes = std::int64_t{256} << 10;  // by one read, so that they stay in the cache
constexpr std::int64_t kNearBytes = std::int64_t{4} << 10;   // between two ranges; sooner read than skipped
constexpr std::size_t kNearRanges = 128;

FileRead read_file(int folder, const char* path, std::size_t room, char* buffer) {
  FileRead file;
  file.descriptor = ::openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const ssize_t size = file.descriptor < 0 ? -1 : ::read(file.descriptor, buffer, room);
  if (size < 0) file.error = errno;
  if (size > 0) file.size = static_cast<std::size_t>(size);
  if (size < 0 || (file.size > 0 && file.size < room)) {
    close_file(file);
    file.descriptor = -1;
  }
  return file;
}

// Returns how many of the ranges from `first` on are read together, at least one.
std::size_t num_near(const Ranges& ranges, std::size_t first) noexcept {
  const std::size_t most = std::min(ranges.count - first, kNearRanges);
  std::size_t near = 1;
  for (; near < most; ++near) {
    const std::size_t i = first + near;
    const std::int64_t gap = ranges.starts[i] - ranges.end(i - 1);
    if (ranges.descriptors[i] != ranges.descriptors[first]) break;
    if (gap < 0 || gap > kNearBytes || ranges.end(i) - ranges.starts[first] > kRunBytes) break;
  }
  return near;
}

// Reads ranges that are near each other, and drops what lies between them. Returns the bytes read, or -1.
ssize_t read_near(const Ranges& ranges, std::size_t first, std::size_t next, char* out) noexcept {
  std::array<char, kNearBytes> dropped;
  std::array<iovec, 2 * kNearRanges> parts;
  int used = 0;
  for (std::size_t i = first; i < next; ++i) {
    parts[used++] = {out + ranges.places[i], ranges.size(i)};
    const std::int64_t gap = i + 1 < next ? ranges.starts[i + 1] - ranges.end(i) : 0;
    if (gap > 0) parts[used++] = {dropped.data(), static_cast<std::size_t>(gap)};
  }
  return ::preadv(ranges.descriptor(first), parts.data(), used, ranges.starts[first]);
}

// Reads one range, for a checksum in parts that are in the cache when it is computed. Returns the bytes read, or -1.
std::int64_t read_large(int descriptor, std::int64_t start, std::int64_t size, char* out, std::uint32_t* crc) noexcept {
  std::uint32_t extended = crc ? *crc : 0;
  const std::int64_t most = crc ? kRunBytes : size;
  std::int64_t done = 0;
  for (ssize_t got = 1; got > 0 && done < size; done += got) {
    got = ::pread(descriptor, out + done, static_cast<std::size_t>(std::min(size - done, most)), start + done);
    if (got < 0) return -1;
    if (crc) extended = extend_crc(extended, out + done, static_cast<std::size_t>(got));
  }
  if (crc) *crc = extended;
  return done;
}

}  // namespace

std::vector<FileRead> read_files(const char* folder, const Pieces& names, std::size_t room, char* buffer,
                                 std::size_t capacity) {
  std::vector<FileRead> files;
  files.reserve(names.count);
  std::size_t used = 0;
  // One walk down to the folder for all. Where there is none, each file tells the error.
  const int above = ::open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  std::string path;
  const auto enough = std::chrono::steady_clock::now() + kEnough;
  for (std::size_t i = 0; i < names.count && capacity - used >= room; ++i) {
    if (i > 0 && std::chrono::steady_clock::now() > enough) break;
    path.assign(names.begin(i), names.size(i));
    if (above < 0 && path[0] != '/') path.insert(0, std::string(folder) + '/');
    const FileRead file = read_file(above < 0 ? AT_FDCWD : above, path.c_str(), room, buffer + used);
    if (file.error == EINTR) break;
    used += file.size;
    files.push_back(file);
  }
  if (above >= 0) ::close(above);
  return files;
}

std::size_t read_ranges(const Ranges& ranges, char* out, std::int64_t* counts, std::uint32_t* crcs) noexcept {
  for (std::size_t first = 0, next = 0; first < ranges.count; first = next) {
    const std::int64_t start = ranges.starts[first];
    if (ranges.sizes[first] > kRunBytes) {
      next = first + 1;
      char* const place = out + ranges.places[first];
      std::uint32_t* const crc = crcs ? crcs + first : nullptr;
      counts[first] = read_large(ranges.descriptor(first), start, ranges.sizes[first], place, crc);
      if (counts[first] < 0) return first;
      continue;
    }
    next = first + num_near(ranges, first);
    const std::int64_t got = read_near(ranges, first, next, out);
    if (got < 0) return first;
    for (std::size_t i = first; i < next; ++i) {
      counts[i] = std::clamp(got - (ranges.starts[i] - start), std::int64_t{0}, ranges.sizes[i]);
      if (crcs) crcs[i] = extend_crc(crcs[i], out + ranges.places[i], static_cast<std::size_t>(counts[i]));
    }
  }
  return ranges.count;
}

void close_file(const FileRead& file) noexcept {
  if (file.descriptor >= 0) ::close(file.descriptor);
}

}  // namespace dlio
