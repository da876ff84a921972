#include "read_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>

namespace dlio {
namespace {

// Several files from memory take less; where one takes longer, threads read the others side by side.
constexpr std::chrono::milliseconds kEnough{5};

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

void close_file(const FileRead& file) noexcept {
  if (file.descriptor >= 0) ::close(file.descriptor);
}

}  // namespace dlio
