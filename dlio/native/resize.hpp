// Antialiased bilinear resize, as Pillow does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights.hpp"

namespace dlio {

// Bytes that must be readable behind the last row of pixels.
constexpr std::size_t kPixelsReadAhead = 16;

// Decoded pixels, 4 bytes each: red, green, blue, and one to ignore.
struct Pixels {
  const std::uint8_t* data;
  std::size_t stride;  // bytes from row to row
  std::uint32_t width;
  std::uint32_t height;
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

// Resizes a part of `pixels` to the target, mirrored left to right where `flip`. The triangle filter widens with the
// scale, as in Pillow's Image.resize(..., BILINEAR, box): columns first, rounded to 8 bits, then rows, weights of 22
// bits. Equal to Pillow bit for bit; 1 of 255 off where Pillow takes the rows first (very tall images). Throws
// std::bad_alloc.
void resize(const Pixels& pixels, const Part& part, bool flip, const Target& target);

// The same to the same bytes, without AVX2.
void resize_on_any_processor(const Pixels& pixels, const Part& part, bool flip, const Target& target);

}  // namespace dlio
