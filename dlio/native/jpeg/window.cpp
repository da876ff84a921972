#include "jpeg/window.hpp"

#include <algorithm>
#include <cstring>

#include "jpeg/huffman.hpp"

namespace dlio {
namespace {

// Widens a range to whole tiles, cut at the image's edge.
Range covering_tiles(const Range& range, std::uint32_t tile, std::uint32_t limit) noexcept {
  return {range.begin / tile * tile, std::min((range.end + tile - 1) / tile * tile, limit)};
}

// What decides on pixels: tables, frame, DRI, SOS, and the two segments (JFIF, Adobe) that tell the colour space.
bool is_needed(std::uint8_t marker) noexcept {
  constexpr std::uint8_t kJfif = 0xE0, kAdobe = 0xEE, kFirstApp = 0xE0, kLastApp = 0xEF, kComment = 0xFE;
  if (marker == kJfif || marker == kAdobe) return true;
  return marker != kComment && (marker < kFirstApp || marker > kLastApp);
}

std::uint8_t* append(std::uint8_t* out, Bytes from, const Segment& segment) noexcept {
  return std::copy(from.data + segment.begin, from.data + segment.end, out);
}

void write_big_endian_16(std::uint8_t* out, std::uint32_t number) noexcept {
  out[0] = static_cast<std::uint8_t>(number >> 8);
  out[1] = static_cast<std::uint8_t>(number);
}

// Appends the bytes from `begin` to `end`, in which every FF is followed by a 00 that does not count. (An FF at the end
// would have none; find_intervals lets no such interval pass.)
std::uint8_t* append_unstuffed(const std::uint8_t* begin, const std::uint8_t* end, std::uint8_t* out) noexcept {
  while (begin < end) {
    const void* found = std::memchr(begin, 0xFF, static_cast<std::size_t>(end - begin));
    if (found == nullptr) return std::copy(begin, end, out);
    const std::uint8_t* behind = static_cast<const std::uint8_t*>(found) + 1;
    out = std::copy(begin, behind, out);
    begin = behind + 1;
  }
  return out;
}

}  // namespace

void Window::trim() noexcept {
  bytes.trim();
  trim_kept(begins);
}

Range with_margin(std::uint32_t begin, std::uint32_t size, std::uint32_t limit) noexcept {
  constexpr std::uint32_t kMargin = 1, kSmallest = 5;
  const std::uint32_t end = std::min(std::max(begin + size + kMargin, kSmallest), limit);
  const std::uint32_t largest_begin = end > kSmallest ? end - kSmallest : 0;
  return {std::min(begin > kMargin ? begin - kMargin : 0, largest_begin), end};
}

Box covering_intervals(const Frame& frame, const Box& box) noexcept {
  const Range wide = with_margin(box.left, box.width, frame.width);
  const Range high = with_margin(box.top, box.height, frame.height);
  const Range columns = covering_tiles(wide, frame.tile_width(), frame.width);
  const Range rows = covering_tiles(high, frame.tile_height(), frame.height);
  return {columns.begin, rows.begin, columns.end - columns.begin, rows.end - rows.begin};
}

std::uint8_t* append_header(Bytes jpeg, const Frame& frame, const Box& region, std::uint8_t* out) noexcept {
  out = std::copy(jpeg.data, jpeg.data + kFirstSegment, out);
  std::optional<Segment> segment;
  for (std::size_t at = kFirstSegment; at < frame.scan && (segment = segment_at(jpeg, at)); at = segment->end) {
    if (!is_needed(segment->marker)) continue;
    if (segment->begin == frame.header) {
      write_big_endian_16(append(out, jpeg, {0, at, at + 5}), region.height);
      write_big_endian_16(out + 7, region.width);
      append(out + 9, jpeg, {0, at + 9, segment->end});
      out += segment->end - at;
    } else {
      out = append(out, jpeg, *segment);
    }
  }
  return out;
}

void cut_window(Bytes jpeg, const Frame& frame, const std::vector<std::size_t>& begins, const Box& region,
                Window& window) {
  constexpr std::size_t kMarkerBytes = 2;
  std::uint8_t* const bytes = window.bytes.at_least(jpeg.size + kReadAhead);
  std::uint8_t* out = append_header(jpeg, frame, region, bytes);
  window.begins.clear();
  const std::uint32_t columns = (region.width + frame.tile_width() - 1) / frame.tile_width();
  const std::uint32_t rows = (region.height + frame.tile_height() - 1) / frame.tile_height();
  std::size_t first = std::size_t{region.top / frame.tile_height()} * frame.tile_columns();
  first += region.left / frame.tile_width();
  for (std::uint32_t row = 0; row < rows; ++row, first += frame.tile_columns()) {
    for (std::size_t i = first; i < first + columns; ++i) {
      window.begins.push_back(static_cast<std::size_t>(out - bytes));
      out = append_unstuffed(jpeg.data + begins[i], jpeg.data + begins[i + 1] - kMarkerBytes, out);
    }
  }
  window.size = static_cast<std::size_t>(out - bytes);
  window.begins.push_back(window.size);
  std::fill_n(out, kReadAhead, std::uint8_t{0});
}

}  // namespace dlio
