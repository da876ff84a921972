#include "status.hpp"

namespace dlio {

const char* describe(Status status) noexcept {
  switch (status) {
    case Status::decoded:
      return "decoded";
    case Status::bad_box:
      return "the box is empty or reaches outside the image";
    case Status::not_jpeg:
      return "the bytes are no JPEG";
    case Status::broken:
      return "the JPEG's headers or tables are broken";
    case Status::damaged:
      return "the JPEG's compressed data are truncated or damaged";
    case Status::unsupported:
      return "the JPEG is of a kind that the compiled core leaves to Pillow (CMYK, 12 bit, lossless)";
    case Status::too_large:
      return "the image has more pixels or scans than the core allows";
    case Status::out_of_memory:
      return "the memory for the image could not be had";
  }
  return nullptr;
}

}  // namespace dlio
