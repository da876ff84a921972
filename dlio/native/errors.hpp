// Statuses, the exception that carries one, and the trap that turns libjpeg's errors into it.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <jpeglib.h>

namespace dlio {

// What became of one image. The numbers are part of the Python interface: append, never renumber.
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

// Returns what becomes of an image in `body`, which throws JpegError and std::bad_alloc alone.
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

// Runs calls of libjpeg and throws JpegError where one of them fails.
//
// libjpeg reports an error by a call that must not return. The trap leaves it with longjmp, which skips destructors:
// so the body given to `run` holds no object with a destructor while it calls libjpeg, throws nothing itself, and
// does not call `run` again. Everything that owns memory lives outside the body.
class ErrorTrap {
 public:
  ErrorTrap() noexcept;
  ErrorTrap(const ErrorTrap&) = delete;
  ErrorTrap& operator=(const ErrorTrap&) = delete;

  jpeg_error_mgr* manager() noexcept { return &manager_; }

  template <class Body>
  void run(Body&& body) {
    if (!completes(body)) throw JpegError(status_, message_);
  }

  // Ends the body that is running with a status and a message of our own. For callbacks that libjpeg calls.
  [[noreturn]] static void fail(j_common_ptr codec, Status status, const char* message) noexcept;

 private:
  // A function of its own, never inlined: locals of its callers cannot sit in registers that longjmp restores.
  template <class Body>
  [[gnu::noinline]] bool completes(Body& body) {
    if (setjmp(jump_) != 0) return false;
    body();
    return true;
  }

  static void on_error(j_common_ptr codec);
  static void on_message(j_common_ptr codec, int level);

  jpeg_error_mgr manager_;  // first member: libjpeg hands back its address as that of the trap
  std::jmp_buf jump_;
  Status status_ = Status::decoded;
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace dlio
