// Antialiased bilinear and bicubic resize, and that of nearest pixels, as Pillow does them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resize/weights.hpp"

namespace dlio {

// Bytes that must be readable behind a row of pixels, or a plane of one.
constexpr std::size_t kPixelsReadAhead = 128;

// Decoded pixels: 4 bytes each, red, green, blue, and one to ignore; or three planes. A row is resized as soon as it is
// there, while it is in the processor's nearest cache.
class PixelRows {
 public:
  // `step` bytes lie between the planes of a row, which only BackEnd::avx512 resizes; or 0.
  PixelRows(std::uint32_t row_width, std::uint32_t num_rows, std::size_t step = 0) noexcept
      : width(row_width), height(num_rows), plane_step(step) {}

  // Returns the next row, which is valid until the next call. To be called `height` times. May throw JpegError.
  virtual const std::uint8_t* next() = 0;

  const std::uint32_t width;
  const std::uint32_t height;
  const std::size_t plane_step;

 protected:
  ~PixelRows() = default;
};

// What is resized of decoded pixels, columns and rows, and how.
struct Part {
  Stretch columns;
  Stretch rows;
  Filter filter;
};

enum class Layout { height_width_channels, channels_height_width };

// Pixels [left, left + width) x [top, top + height) of a target.
struct Place {
  std::int32_t left;
  std::int32_t top;
  std::int32_t width;
  std::int32_t height;
};

// Where one image goes: 3 x height x width bytes, without gaps where the steps are 0.
struct Target {
  std::uint8_t* data;
  std::uint32_t height;
  std::uint32_t width;
  Layout layout;
  std::size_t row_step = 0;    // pixels from a row to the next
  std::size_t plane_step = 0;  // rows from a channel to the next

  std::size_t row_pixels() const noexcept { return row_step > 0 ? row_step : width; }
  std::size_t plane_rows() const noexcept { return plane_step > 0 ? plane_step : height; }
  std::size_t pixel_bytes() const noexcept { return layout == Layout::channels_height_width ? 1 : 3; }

  // Returns where a row begins; `plane` is a channel, or 0 where all lie together.
  std::uint8_t* row(std::size_t plane, std::size_t y) const noexcept {
    return data + (plane * plane_rows() + y) * row_pixels() * pixel_bytes();
  }
  // Returns the part at a place within.
  Target part(const Place& place) const noexcept {
    return {row(0, static_cast<std::size_t>(place.top)) + static_cast<std::size_t>(place.left) * pixel_bytes(),
            static_cast<std::uint32_t>(place.height),
            static_cast<std::uint32_t>(place.width),
            layout,
            row_pixels(),
            plane_rows()};
  }
};

// Resizes a part of the pixels to the target, mirrored left to right where `flip`. The filter widens with the
// scale, as in Pillow's Image.resize(..., BILINEAR, box): columns first, rounded to 8 bits, then rows, weights of 22
// bits. Equal to Pillow bit for bit; 1 of 255 off where Pillow takes the rows first (very tall images). Throws
// std::bad_alloc and what `pixels` throws; the target then is as it was.
void resize(PixelRows& pixels, const Part& part, bool flip, const Target& target);

// The same of grey pixels, to three equal channels in a third of the time: each row of `triples` holds three rows of an
// image of `height` rows, as red, green and blue; what the last one holds beyond the image does not count.
void resize_grey(PixelRows& triples, std::uint32_t height, const Part& part, bool flip, const Target& target);

}  // namespace dlio
