// The structure of a baseline JPEG's scan: where each restart interval begins. Without restarts all of it is one.
//
// Of ITU-T T.81 this needs little: segments are FF xx followed by a 16 bit length (B.1.1.4), the frame header holds
// size and sampling factors (B.2.2), DRI the restart interval in MCUs (B.2.4.4), and in the entropy-coded data FF 00
// stands for FF, FF D0 to FF D7 end an interval in turn, and any other marker ends the scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "jpeg/codec.hpp"

namespace dlio {

struct Segment {
  std::uint8_t marker;
  std::size_t begin;  // offset of the FF
  std::size_t end;
};

// Returns the segment at `offset`, or nothing where none begins there or it does not fit into the bytes.
std::optional<Segment> segment_at(Bytes jpeg, std::size_t offset) noexcept;

constexpr std::size_t kFirstSegment = 2;  // behind SOI

// Frame and scan of a sequential, Huffman-coded, 8 bit JPEG of 1 or 3 components in one interleaved scan.
struct Frame {
  std::uint32_t width;
  std::uint32_t height;
  std::uint32_t mcu_width;  // pixels
  std::uint32_t mcu_height;
  std::uint32_t restart_interval;  // MCUs; 0 where there are no restarts
  std::size_t header;              // offset of the SOF segment
  std::size_t scan;                // offset of the first entropy-coded byte

  std::uint32_t mcus_per_row() const noexcept { return (width + mcu_width - 1) / mcu_width; }
  // Whether the intervals tile the image: each row of MCUs is a whole number of them, or there is just one.
  bool tiles() const noexcept { return restart_interval == 0 || mcus_per_row() % restart_interval == 0; }
  // What an interval of such a frame covers, in pixels.
  std::uint32_t tile_width() const noexcept { return restart_interval > 0 ? restart_interval * mcu_width : width; }
  std::uint32_t tile_height() const noexcept { return restart_interval > 0 ? mcu_height : height; }
  std::uint32_t tile_columns() const noexcept { return (width + tile_width() - 1) / tile_width(); }
  std::uint32_t tile_rows() const noexcept { return (height + tile_height() - 1) / tile_height(); }
};

// Returns the frame, or nothing for any other kind of JPEG and for bytes that are none.
std::optional<Frame> parse_frame(Bytes jpeg) noexcept;

// Finds the restart intervals of a frame, which has to tile. On success interval i of n is the bytes from `begins[i]`
// to `begins[i + 1] - 2`, and n is what the frame promises. Returns false where the scan does not keep that promise: a
// marker missing, out of turn or too many, other markers, no end.
bool find_intervals(Bytes jpeg, const Frame& frame, std::vector<std::size_t>& begins);

// Whether windows can be cut out of this JPEG that are smaller than all of it.
bool is_crop_ready(Bytes jpeg, const std::optional<Frame>& frame);

}  // namespace dlio
