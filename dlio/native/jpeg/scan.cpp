#include "jpeg/scan.hpp"

#include <algorithm>
#include <cstring>

namespace dlio {
namespace {

enum Marker : std::uint8_t {
  SOF0 = 0xC0,
  SOF1 = 0xC1,
  DHT = 0xC4,
  RST0 = 0xD0,
  EOI = 0xD9,
  SOS = 0xDA,
  DQT = 0xDB,
  DRI = 0xDD,
  APP0 = 0xE0,
  APP15 = 0xEF,
  COM = 0xFE,
};

std::uint32_t big_endian_16(const std::uint8_t* bytes) noexcept { return std::uint32_t{bytes[0]} << 8 | bytes[1]; }

// Fills in the frame header. Returns false where this is none that windows can be cut from.
bool read_sof(Bytes jpeg, const Segment& segment, Frame& frame) noexcept {
  const std::uint8_t* body = jpeg.data + segment.begin + 4;
  const std::size_t size = segment.end - segment.begin - 4;
  if (frame.header != 0 || size < 6) return false;
  const std::uint32_t components = body[5];
  if (body[0] != 8 || (components != 1 && components != 3) || size != 6 + 3 * components) return false;
  std::uint32_t horizontal = 1;
  std::uint32_t vertical = 1;
  for (std::uint32_t i = 0; i < components; ++i) {
    const std::uint8_t sampling = body[6 + 3 * i + 1];
    horizontal = std::max<std::uint32_t>(horizontal, sampling >> 4);
    vertical = std::max<std::uint32_t>(vertical, sampling & 15);
  }
  // A scan of one component is not interleaved: its MCU is one block, whatever the sampling factors (A.2.2).
  frame.mcu_width = components == 1 ? 8 : 8 * horizontal;
  frame.mcu_height = components == 1 ? 8 : 8 * vertical;
  frame.height = big_endian_16(body + 1);
  frame.width = big_endian_16(body + 3);
  frame.header = segment.begin;
  return frame.width > 0 && frame.height > 0 && horizontal <= 4 && vertical <= 4;
}

bool read_dri(Bytes jpeg, const Segment& segment, Frame& frame) noexcept {
  if (segment.end - segment.begin != 6) return false;
  frame.restart_interval = big_endian_16(jpeg.data + segment.begin + 4);
  return true;
}

// Ends the header at SOS. Returns false unless all components of the frame are in this scan.
bool read_sos(Bytes jpeg, const Segment& segment, Frame& frame) noexcept {
  if (frame.header == 0 || segment.end - segment.begin < 5) return false;
  frame.scan = segment.end;
  return jpeg.data[segment.begin + 4] == jpeg.data[frame.header + 9];
}

struct Begins {
  std::vector<std::size_t> offsets;

  void trim() noexcept { trim_kept(offsets); }
};

bool is_table_or_comment(std::uint8_t marker) noexcept {
  return marker == DHT || marker == DQT || marker == COM || (marker >= APP0 && marker <= APP15);
}

}  // namespace

std::optional<Segment> segment_at(Bytes jpeg, std::size_t offset) noexcept {
  if (jpeg.size < 4 || offset > jpeg.size - 4 || jpeg.data[offset] != 0xFF) return std::nullopt;
  const std::size_t length = big_endian_16(jpeg.data + offset + 2);
  if (length < 2 || length > jpeg.size - offset - 2) return std::nullopt;
  return Segment{jpeg.data[offset + 1], offset, offset + 2 + length};
}

std::optional<Frame> parse_frame(Bytes jpeg) noexcept {
  if (jpeg.size < 4 || jpeg.data[0] != 0xFF || jpeg.data[1] != 0xD8) return std::nullopt;
  Frame frame{};
  std::optional<Segment> segment;
  for (std::size_t offset = kFirstSegment; (segment = segment_at(jpeg, offset)); offset = segment->end) {
    const std::uint8_t marker = segment->marker;
    if (marker == SOS) return read_sos(jpeg, *segment, frame) ? std::optional(frame) : std::nullopt;
    const bool good = marker == SOF0 || marker == SOF1 ? read_sof(jpeg, *segment, frame)
                      : marker == DRI                  ? read_dri(jpeg, *segment, frame)
                                                       : is_table_or_comment(marker);
    if (!good) return std::nullopt;
  }
  return std::nullopt;
}

bool find_intervals(Bytes jpeg, const Frame& frame, std::vector<std::size_t>& begins) {
  begins.clear();
  if (!frame.tiles()) return false;
  const std::size_t expected = std::size_t{frame.tile_columns()} * frame.tile_rows();
  if (expected > jpeg.size / 2) return false;  // every interval has a marker
  begins.reserve(expected + 1);
  begins.push_back(frame.scan);
  const std::uint8_t* const end = jpeg.data + jpeg.size;
  const std::uint8_t* at = jpeg.data + frame.scan;
  while ((at = static_cast<const std::uint8_t*>(std::memchr(at, 0xFF, static_cast<std::size_t>(end - at))))) {
    if (end - at < 2) return false;
    const std::uint8_t marker = at[1];
    at += 2;
    if (marker == 0) continue;
    const bool last = begins.size() == expected;
    if (marker != (last ? std::uint8_t{EOI} : std::uint8_t(RST0 + (begins.size() - 1) % 8))) return false;
    begins.push_back(static_cast<std::size_t>(at - jpeg.data));
    if (last) return true;
  }
  return false;
}

bool is_crop_ready(Bytes jpeg, const std::optional<Frame>& frame) {
  Kept<Begins> begins;
  return frame && frame->restart_interval > 0 && find_intervals(jpeg, *frame, begins->offsets);
}

}  // namespace dlio
