// The trap that turns libjpeg's errors into exceptions.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

#include "status.hpp"

namespace dlio {

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

  // Ends the body that is running with a status and our own message. For callbacks that libjpeg calls.
  [[noreturn]] static void fail(j_common_ptr codec, Status status, const char* message) noexcept;

 private:
  // A separate function, never inlined: locals of its callers cannot sit in registers that longjmp restores.
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
