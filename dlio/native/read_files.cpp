#include "read_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace dlio {

std::vector<FileRead> read_files(const std::vector<const char*>& paths, std::size_t room, char* buffer,
                                 std::size_t capacity) {
  std::vector<FileRead> files;
  files.reserve(paths.size());
  std::size_t used = 0;
  for (const char* path : paths) {
    if (capacity - used < room) break;
    FileRead file;
    file.begin = used;
    file.descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t size = file.descriptor < 0 ? -1 : ::read(file.descriptor, buffer + used, room);
    if (size < 0) {
      file.error = errno;
      if (file.descriptor >= 0) ::close(file.descriptor);
      file.descriptor = -1;
      if (file.error == EINTR) break;
    } else {
      file.size = static_cast<std::size_t>(size);
      if (file.size > 0 && file.size < room) {
        ::close(file.descriptor);
        file.descriptor = -1;
      }
    }
    used += file.size;
    files.push_back(file);
  }
  return files;
}

void close_file(const FileRead& file) noexcept {
  if (file.descriptor >= 0) ::close(file.descriptor);
}

}  // namespace dlio
