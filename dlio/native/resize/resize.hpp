// Antialiased bilinear resize, as Pillow does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resize/weights.hpp"

namespace dlio {

// Bytes that must be readable behind a row of pixels.
constexpr std::size_t kPixelsReadAhead = 16;

// Decoded pixels, 4 bytes each: red, green, blue, and one to ignore. A row is resized as soon as it is there, while it
// is in the processor's nearest cache.
class PixelRows {
 public:
  PixelRows(std::uint32_t row_width, std::uint32_t num_rows) noexcept : width(row_width), height(num_rows) {}

  // Returns the next row, which is valid until the next call. To be called `height` times. May throw JpegError.
  virtual const std::uint8_t* next() = 0;

  const std::uint32_t width;
  const std::uint32_t height;

 protected:
  ~PixelRows() = default;
};

// What is resized of decoded pixels: columns and rows.
struct Part {
  Stretch columns;
  Stretch rows;
};

enum class Layout { height_width_channels, channels_height_width };

// Where one image goes: 3 x height x width bytes without gaps.
struct Target {
  std::uint8_t* data;
  std::uint32_t height;
  std::uint32_t width;
  Layout layout;
};

// Resizes a part of the pixels to the target, mirrored left to right where `flip`. The triangle filter widens with the
// scale, as in Pillow's Image.resize(..., BILINEAR, box): columns first, rounded to 8 bits, then rows, weights of 22
// bits. Equal to Pillow bit for bit; 1 of 255 off where Pillow takes the rows first (very tall images). Throws
// std::bad_alloc and what `pixels` throws; the target then is as it was.
void resize(PixelRows& pixels, const Part& part, bool flip, const Target& target);

// The same to the same bytes, without AVX2.
void resize_on_any_processor(PixelRows& pixels, const Part& part, bool flip, const Target& target);

}  // namespace dlio
