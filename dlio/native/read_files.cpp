#include "read_files.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "crc32c.hpp"

namespace dlio {
namespace {

// Several files from memory take less; where one takes longer, threads read the others side by side.
constexpr std::chrono::milliseconds kEnough{5};

constexpr std::size_t kRunBytes = std::size_t{256} << 10;   // by one read, so that they stay in the cache
constexpr std::int64_t kNearBytes = std::int64_t{4} << 10;  // between two rows; sooner read than skipped
constexpr std::size_t kNearRows = 128;

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

// Returns how many of the ranges are read together, at least one.
std::size_t num_near(const std::int64_t* starts, std::size_t count, std::int64_t size) noexcept {
  const std::size_t most = std::min(count, kNearRows);
  std::size_t near = 1;
  for (; near < most; ++near) {
    const std::int64_t gap = starts[near] - starts[near - 1] - size;
    if (gap < 0 || gap > kNearBytes || starts[near] - starts[0] + size > static_cast<std::int64_t>(kRunBytes)) break;
  }
  return near;
}

// Reads ranges that are near each other, and drops what lies between them. Returns the bytes read, or -1.
ssize_t read_near_rows(int descriptor, const std::int64_t* starts, std::size_t first, std::size_t next,
                       const Rows& rows) noexcept {
  std::array<char, kNearBytes> dropped;
  std::array<iovec, 2 * kNearRows> parts;
  int used = 0;
  for (std::size_t i = first; i < next; ++i) {
    parts[used++] = {rows.row(i), rows.size};
    const std::size_t gap = i + 1 < next ? starts[i + 1] - starts[i] - rows.size : 0;
    if (gap > 0) parts[used++] = {dropped.data(), gap};
  }
  return ::preadv(descriptor, parts.data(), used, starts[first]);
}

// Reads one range in parts, each of which is in the cache when its checksum is computed. Returns whether that was done.
bool read_large_row(int descriptor, std::int64_t start, const Rows& rows, char* row, std::int64_t& size,
                    std::uint32_t& crc) noexcept {
  std::uint32_t extended = crc;
  std::size_t done = 0;
  for (ssize_t got = 1; got > 0 && done < rows.size; done += static_cast<std::size_t>(got)) {
    got =
        ::pread(descriptor, row + done, std::min(rows.size - done, kRunBytes), start + static_cast<std::int64_t>(done));
    if (got < 0) return false;
    extended = extend_crc(extended, row + done, static_cast<std::size_t>(got));
  }
  size = static_cast<std::int64_t>(done);
  crc = extended;
  return true;
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

std::size_t read_ranges(int descriptor, const std::int64_t* starts, std::int64_t* sizes, std::size_t count,
                        char* buffer) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = static_cast<std::size_t>(sizes[i]);
    const ssize_t got = ::pread(descriptor, buffer, size, starts[i]);
    if (got < 0) return i;
    sizes[i] = got;
    buffer += size;
  }
  return count;
}

std::size_t read_rows(int descriptor, const std::int64_t* starts, std::size_t count, const Rows& rows,
                      std::int64_t* sizes, std::uint32_t* crcs) noexcept {
  for (std::size_t first = 0, next = 0; first < count; first = next) {
    if (rows.size > kRunBytes) {
      next = first + 1;
      if (!read_large_row(descriptor, starts[first], rows, rows.row(first), sizes[first], crcs[first])) return first;
      continue;
    }
    next = first + num_near(starts + first, count - first, static_cast<std::int64_t>(rows.size));
    const std::int64_t got = read_near_rows(descriptor, starts, first, next, rows);
    if (got < 0) return first;
    for (std::size_t i = first; i < next; ++i) {
      sizes[i] = std::clamp(got - (starts[i] - starts[first]), std::int64_t{0}, static_cast<std::int64_t>(rows.size));
      crcs[i] = extend_crc(crcs[i], rows.row(i), static_cast<std::size_t>(sizes[i]));
    }
  }
  return count;
}

void close_file(const FileRead& file) noexcept {
  if (file.descriptor >= 0) ::close(file.descriptor);
}

}  // namespace dlio
