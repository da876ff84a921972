#include "jpeg/error_trap.hpp"

#include <cstring>
#include <type_traits>

#include <jerror.h>

namespace dlio {
namespace {

Status status_of_error(int code) noexcept {
  switch (code) {
    case JERR_NO_SOI:
    case JERR_INPUT_EMPTY:
      return Status::not_jpeg;
#if JPEG_LIB_VERSION < 70
    case JERR_ARITH_NOTIMPL:
#endif
    case JERR_BAD_PRECISION:
    case JERR_CCIR601_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_NOTIMPL:
    case JERR_SOF_UNSUPPORTED:
      return Status::unsupported;
    case JERR_IMAGE_TOO_BIG:
      return Status::too_large;
    case JERR_OUT_OF_MEMORY:
      return Status::out_of_memory;
    default:
      return Status::broken;
  }
}

// Oddities of headers, and stray bytes between two intervals of entropy-coded data: every pixel is still there.
bool is_harmless(int warning) noexcept {
  switch (warning) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:
      return true;
    default:
      return false;
  }
}

}  // namespace

ErrorTrap::ErrorTrap() noexcept {
  static_assert(std::is_standard_layout_v<ErrorTrap>, "the address of manager_ must be that of the trap");
  jpeg_std_error(&manager_);
  manager_.error_exit = on_error;
  manager_.emit_message = on_message;
}

void ErrorTrap::fail(j_common_ptr codec, Status status, const char* message) noexcept {
  auto* trap = reinterpret_cast<ErrorTrap*>(codec->err);
  trap->status_ = status;
  std::strncpy(trap->message_, message, sizeof trap->message_ - 1);
  std::longjmp(trap->jump_, 1);
}

void ErrorTrap::on_error(j_common_ptr codec) {
  char message[JMSG_LENGTH_MAX] = "";
  codec->err->format_message(codec, message);
  fail(codec, status_of_error(codec->err->msg_code), message);
}

// Stops at the first warning about damaged data: libjpeg would continue and fill the rest with grey.
void ErrorTrap::on_message(j_common_ptr codec, int level) {
  if (level >= 0 || is_harmless(codec->err->msg_code)) return;
  char message[JMSG_LENGTH_MAX] = "";
  codec->err->format_message(codec, message);
  fail(codec, Status::damaged, message);
}

}  // namespace dlio
