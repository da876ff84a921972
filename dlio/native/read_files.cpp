#include "read_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

namespace dlio {
namespace {

// Several files from memory take less; where one takes longer, threads read the others side by side.
constexpr std::chrono::milliseconds kEnough{5};

constexpr std::size_t kRunBytes = std::size_t{256} << 10;  // by one read, so that they stay in the cache

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
  const auto size = static_cast<std::int64_t>(rows.size);
  for (std::size_t first = 0, next = 0; first < count; first = next) {
    for (++next; next < count && (next + 1 - first) * rows.size <= kRunBytes; ++next) {
      if (starts[next] - starts[next - 1] != size || rows.numbers[next] != rows.numbers[next - 1] + 1) break;
    }
    char* row = rows.data + rows.numbers[first] * size;
    std::int64_t left = ::pread(descriptor, row, (next - first) * rows.size, starts[first]);
    if (left < 0) return first;
    for (std::size_t i = first; i < next; ++i, row += size, left -= sizes[i - 1]) {
      sizes[i] = std::min(left, size);
      crcs[i] = extend_crc(crcs[i], row, static_cast<std::size_t>(sizes[i]));
    }
  }
  return count;
}

void close_file(const FileRead& file) noexcept {
  if (file.descriptor >= 0) ::close(file.descriptor);
}

}  // namespace dlio
