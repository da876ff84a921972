// Resizing boxes of pixels that somebody else has decoded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resize/request.hpp"
#include "resize/resize.hpp"
#include "status.hpp"

namespace dlio {

// height x width x 3 bytes without gaps: red, green, blue.
struct RgbPixels {
  const std::uint8_t* data;
  std::size_t height;
  std::size_t width;
};

// Resizes the box as decode_box does that of a JPEG. Throws nothing.
Status resize_box(const RgbPixels& pixels, const Request& request, const Target& target) noexcept;

}  // namespace dlio
