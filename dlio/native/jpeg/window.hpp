// Cutting the JPEG of a window out of a crop-ready JPEG, without decoding. Of any other the window is all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/codec.hpp"
#include "jpeg/scan.hpp"
#include "memory.hpp"
#include "resize/request.hpp"

namespace dlio {

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

// Appends the headers of `region` alone, up to the scan: no more bytes than those of the JPEG. Returns their end.
std::uint8_t* append_header(Bytes jpeg, const Frame& frame, const Box& region, std::uint8_t* out) noexcept;

// What is cut out of a JPEG, in memory that is kept for the next window.
struct Window {
  Scratch bytes;                    // headers for the window's size, up to the scan, then the scan's intervals
  std::size_t size = 0;             // bytes
  std::vector<std::size_t> begins;  // of the intervals within `bytes`, and the end of the last one

  Bytes jpeg() noexcept { return {bytes.data(), size}; }
  void trim() noexcept;
};

// Cuts `region`, which consists of whole intervals, out of a JPEG; `begins` comes from find_intervals. The intervals
// are without markers and without stuffing (FF 00 is FF), so that only IntervalDecoder can read them.
// Throws std::bad_alloc.
void cut_window(Bytes jpeg, const Frame& frame, const std::vector<std::size_t>& begins, const Box& region,
                Window& window);

}  // namespace dlio
