// Cutting the JPEG of a window out of a crop-ready JPEG, without decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "codec.hpp"
#include "scan.hpp"

namespace dlio {

// Pixels [left, left + width) x [top, top + height).
struct Box {
  std::uint32_t left;
  std::uint32_t top;
  std::uint32_t width;
  std::uint32_t height;
};

// Columns or rows [begin, end).
struct Range {
  std::uint32_t begin;
  std::uint32_t end;
};

// Returns the region of an image of `limit` columns or rows to decode so that `size` of them from `begin` on are exact.
// Chroma is upsampled from its neighbours ("fancy upsampling"), which needs 1 pixel on each side, and libjpeg does so
// only where there are more than 2 samples of chroma in a row, which needs 5 pixels at least.
Range with_margin(std::uint32_t begin, std::uint32_t size, std::uint32_t limit) noexcept;

// Returns the smallest region of whole restart intervals that decodes to exact pixels inside `box`.
Box covering_intervals(const Frame& frame, const Box& box) noexcept;

// Writes to `jpeg_of_window` the JPEG of `window`, a region of whole intervals: the tables, a frame header of the
// window's size, and its intervals with their markers renumbered. `begins` comes from find_intervals.
void cut_window(Bytes jpeg, const Frame& frame, const std::vector<std::size_t>& begins, const Box& window,
                std::vector<std::uint8_t>& jpeg_of_window);

}  // namespace dlio
