// The status of an image, and its exception.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace dlio {

// The status of one image. The numbers are part of the Python interface: append, never renumber.
enum class Status : std::int32_t {
  decoded = 0,
  bad_box = 1,
  not_jpeg = 2,
  broken = 3,
  damaged = 4,
  unsupported = 5,
  too_large = 6,
  out_of_memory = 7,
};

// Returns what `status` means, or nullptr where there is no such status.
const char* describe(Status status) noexcept;

class JpegError : public std::runtime_error {
 public:
  JpegError(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

// Returns the status of an image after `body`, which throws JpegError and std::bad_alloc alone.
template <typename Body>
Status status_of(Body&& body) noexcept {
  try {
    body();
    return Status::decoded;
  } catch (const JpegError& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

}  // namespace dlio
