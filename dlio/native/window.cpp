#include "window.hpp"

#include <algorithm>

namespace dlio {
namespace {

// Widens a range to whole tiles, cut at the image's edge.
Range covering_tiles(const Range& range, std::uint32_t tile, std::uint32_t limit) noexcept {
  return {range.begin / tile * tile, std::min((range.end + tile - 1) / tile * tile, limit)};
}

// libjpeg-turbo's fast Huffman decoder fills its bit buffer up to 8 bytes ahead, and where it meets a marker there, it
// starts the MCU again with a slow one; without these bytes that is 1 MCU in 4. They are 1 bits, which no Huffman code
// consists of, so an interval that is too short is still found damaged. Nobody else sees them.
constexpr std::uint8_t kReadAhead[] = {0xFF, 0, 0xFF, 0, 0xFF, 0, 0xFF, 0, 0xFF, 0, 0xFF, 0, 0xFF, 0, 0xFF, 0};

// The fast decoder is used only while the input has 512 bytes left for each of the MCU's blocks, of which 10 at most.
constexpr std::size_t kBytesForFastDecoder = 10 * 512;

constexpr std::size_t kMarkerBytes = 2;

// What decides on pixels: tables, frame, DRI, SOS, and the two segments (JFIF, Adobe) that tell the colour space.
bool is_needed(std::uint8_t marker) noexcept {
  constexpr std::uint8_t kJfif = 0xE0, kAdobe = 0xEE, kFirstApp = 0xE0, kLastApp = 0xEF, kComment = 0xFE;
  if (marker == kJfif || marker == kAdobe) return true;
  return marker != kComment && (marker < kFirstApp || marker > kLastApp);
}

void append(std::vector<std::uint8_t>& out, Bytes from, std::size_t begin, std::size_t end) {
  out.insert(out.end(), from.data + begin, from.data + end);
}

void append_header(Bytes jpeg, const Frame& frame, const Box& window, std::vector<std::uint8_t>& out) {
  append(out, jpeg, 0, kFirstSegment);
  std::optional<Segment> segment;
  for (std::size_t at = kFirstSegment; at < frame.scan && (segment = segment_at(jpeg, at)); at = segment->end) {
    if (!is_needed(segment->marker)) continue;
    append(out, jpeg, segment->begin, segment->end);
    if (segment->begin != frame.header) continue;
    std::uint8_t* size = out.data() + out.size() - (segment->end - segment->begin) + 5;
    size[0] = static_cast<std::uint8_t>(window.height >> 8);
    size[1] = static_cast<std::uint8_t>(window.height);
    size[2] = static_cast<std::uint8_t>(window.width >> 8);
    size[3] = static_cast<std::uint8_t>(window.width);
  }
}

}  // namespace

Range with_margin(std::uint32_t begin, std::uint32_t size, std::uint32_t limit) noexcept {
  constexpr std::uint32_t kMargin = 1, kSmallest = 5;
  const std::uint32_t end = std::min(std::max(begin + size + kMargin, kSmallest), limit);
  const std::uint32_t largest_begin = end > kSmallest ? end - kSmallest : 0;
  return {std::min(begin > kMargin ? begin - kMargin : 0, largest_begin), end};
}

Box covering_intervals(const Frame& frame, const Box& box) noexcept {
  const std::uint32_t tile_width = frame.restart_interval * frame.mcu_width;
  const Range columns = covering_tiles(with_margin(box.left, box.width, frame.width), tile_width, frame.width);
  const Range rows = covering_tiles(with_margin(box.top, box.height, frame.height), frame.mcu_height, frame.height);
  return {columns.begin, rows.begin, columns.end - columns.begin, rows.end - rows.begin};
}

void cut_window(Bytes jpeg, const Frame& frame, const std::vector<std::size_t>& begins, const Box& window,
                std::vector<std::uint8_t>& jpeg_of_window) {
  std::vector<std::uint8_t>& out = jpeg_of_window;
  out.clear();
  out.reserve(jpeg.size + begins.size() * sizeof kReadAhead + kBytesForFastDecoder);
  append_header(jpeg, frame, window, out);
  const std::uint32_t tile_width = frame.restart_interval * frame.mcu_width;
  const std::uint32_t columns = (window.width + tile_width - 1) / tile_width;
  const std::uint32_t rows = (window.height + frame.mcu_height - 1) / frame.mcu_height;
  std::size_t first = std::size_t{window.top / frame.mcu_height} * frame.intervals_per_row() + window.left / tile_width;
  std::uint32_t number = 0;
  for (std::uint32_t row = 0; row < rows; ++row, first += frame.intervals_per_row()) {
    for (std::size_t i = first; i < first + columns; ++i) {
      append(out, jpeg, begins[i], begins[i + 1] - kMarkerBytes);
      out.insert(out.end(), std::begin(kReadAhead), std::end(kReadAhead));
      out.push_back(0xFF);
      out.push_back(static_cast<std::uint8_t>(0xD0 + number++ % 8));
    }
  }
  out.back() = 0xD9;
  out.insert(out.end(), kBytesForFastDecoder, 0);
}

}  // namespace dlio
