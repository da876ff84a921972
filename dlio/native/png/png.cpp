#include "png/png.hpp"

#include <libdeflate.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "memory.hpp"
#include "resize/request.hpp"

namespace dlio {
namespace {

constexpr std::size_t kSignatureBytes = 8, kFrameBytes = 12, kHeaderBytes = 13;  // a frame: length, name and CRC
constexpr std::size_t kMostBytesPerByte = 1032;                                  // that deflate makes of one
constexpr std::size_t kRgbBytes = 3;

struct Header {
  std::uint32_t width;
  std::uint32_t height;
  std::size_t channels;

  std::size_t row_bytes() const noexcept { return width * channels; }
  std::size_t filtered_bytes() const noexcept { return height * (1 + row_bytes()); }
};

std::uint32_t big_endian_32(const std::uint8_t* at) noexcept {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

// The content of a chunk, and its name; without one where the chunk is cut off or damaged.
struct Chunk {
  std::string_view name;
  Bytes content;
};

Chunk chunk_at(Bytes png, std::size_t at) noexcept {
  if (png.size - at < kFrameBytes) return {};
  const std::uint32_t size = big_endian_32(png.data + at);
  if (size > png.size - at - kFrameBytes) return {};
  const std::uint8_t* const name = png.data + at + 4;
  if (libdeflate_crc32(0, name, size + 4) != big_endian_32(name + 4 + size)) return {};
  return {{reinterpret_cast<const char*>(name), 4}, {name + 4, size}};
}

std::optional<Header> read_header(Bytes png) noexcept {
  constexpr std::uint8_t kGrey = 0, kRgb = 2;
  if (png.size < kSignatureBytes || std::memcmp(png.data, "\x89PNG\r\n\x1a\n", kSignatureBytes) != 0) return {};
  const Chunk chunk = chunk_at(png, kSignatureBytes);
  if (chunk.name != "IHDR" || chunk.content.size != kHeaderBytes) return {};
  const std::uint8_t* const at = chunk.content.data;
  const Header header{big_endian_32(at), big_endian_32(at + 4), at[9] == kRgb ? kRgbBytes : 1};
  const bool is_plain = at[8] == 8 && (at[9] == kGrey || at[9] == kRgb) && at[10] == 0 && at[11] == 0 && at[12] == 0;
  const bool has_pixels = header.width > 0 && header.height > 0 && header.width <= kMaxPixels / header.height;
  return is_plain && has_pixels ? std::optional(header) : std::nullopt;
}

// Returns the compressed pixels: a part of the PNG, or `joined`, where they come in several chunks.
std::optional<Bytes> compressed(Bytes png, Scratch& joined) {
  Bytes found{nullptr, 0};
  for (std::size_t at = kSignatureBytes; at < png.size;) {
    const Chunk chunk = chunk_at(png, at);
    if (chunk.name.empty()) return {};
    if (chunk.name == "IEND") return found;
    at += kFrameBytes + chunk.content.size;
    if (chunk.name != "IDAT") continue;
    if (found.size == 0) {
      found = chunk.content;
      continue;
    }
    if (found.data != joined.data()) {
      std::uint8_t* const whole = joined.at_least(png.size);
      std::memcpy(whole, found.data, found.size);
      found.data = whole;
    }
    std::memcpy(joined.data() + found.size, chunk.content.data, chunk.content.size);
    found.size += chunk.content.size;
  }
  return {};
}

bool inflate(Bytes from, std::uint8_t* to, std::size_t size) {
  struct Free {
    void operator()(libdeflate_decompressor* decompressor) const noexcept {
      libdeflate_free_decompressor(decompressor);
    }
  };
  thread_local const std::unique_ptr<libdeflate_decompressor, Free> decompressor(libdeflate_alloc_decompressor());
  if (!decompressor) throw std::bad_alloc();
  return libdeflate_zlib_decompress(decompressor.get(), from.data, from.size, to, size, nullptr) == LIBDEFLATE_SUCCESS;
}

inline int paeth(int left, int up, int corner) noexcept {
  const int to_left = std::abs(up - corner), to_up = std::abs(left - corner);
  const int to_corner = std::abs(left + up - 2 * corner);
  if (to_left <= to_up && to_left <= to_corner) return left;
  return to_up <= to_corner ? up : corner;
}

// Undoes the filter of a row (PNG specification, 9.2) in place; `up` is the row above. The pixel before either is zero.
// Returns whether there is such a filter.
template <std::size_t kChannels>
bool unfilter(std::uint8_t filter, const std::uint8_t* up, std::uint8_t* row, std::size_t size) noexcept {
  const std::uint8_t* const left = row - kChannels;
  const std::uint8_t* const corner = up - kChannels;
  const auto add = [&](auto predict) {
    for (std::size_t i = 0; i < size; ++i) row[i] = static_cast<std::uint8_t>(row[i] + predict(i));
  };
  switch (filter) {
    case 0:
      return true;
    case 1:
      add([&](std::size_t i) { return left[i]; });
      return true;
    case 2:
      add([&](std::size_t i) { return up[i]; });
      return true;
    case 3:
      add([&](std::size_t i) { return (left[i] + up[i]) / 2; });
      return true;
    case 4:
      add([&](std::size_t i) { return paeth(left[i], up[i], corner[i]); });
      return true;
    default:
      return false;
  }
}

void write_rgb(const std::uint8_t* row, const Header& header, std::uint8_t* out) noexcept {
  if (header.channels == kRgbBytes) {
    std::memcpy(out, row, header.row_bytes());
  } else {
    for (std::size_t x = 0; x < header.width; ++x) std::memset(out + kRgbBytes * x, row[x], kRgbBytes);
  }
}

struct Workspace {
  Scratch joined;
  Scratch filtered;
  Scratch rows;  // the row above and the present one, each behind a pixel of zeros

  void trim() noexcept {
    joined.trim();
    filtered.trim();
    rows.trim();
  }
};

bool write_pixels(const Header& header, Workspace& work, std::uint8_t* out) {
  const std::size_t row_bytes = header.row_bytes(), stride = kRgbBytes + row_bytes;
  std::uint8_t* const rows = work.rows.at_least(2 * stride);
  std::memset(rows, 0, 2 * stride);
  const std::uint8_t* from = work.filtered.data();
  for (std::size_t y = 0; y < header.height; ++y, from += 1 + row_bytes, out += kRgbBytes * header.width) {
    std::uint8_t* const row = rows + y % 2 * stride + kRgbBytes;
    const std::uint8_t* const up = rows + (y + 1) % 2 * stride + kRgbBytes;
    std::memcpy(row, from + 1, row_bytes);
    const bool good = header.channels == kRgbBytes ? unfilter<kRgbBytes>(from[0], up, row, row_bytes)
                                                   : unfilter<1>(from[0], up, row, row_bytes);
    if (!good) return false;
    write_rgb(row, header, out);
  }
  return true;
}

}  // namespace

std::optional<Image> decode_png(Bytes png) {
  const std::optional<Header> header = read_header(png);
  Kept<Workspace> work;
  const std::optional<Bytes> pixels = header ? compressed(png, work->joined) : std::nullopt;
  if (!pixels || header->filtered_bytes() / kMostBytesPerByte > pixels->size) return {};
  if (!inflate(*pixels, work->filtered.at_least(header->filtered_bytes()), header->filtered_bytes())) return {};
  Image image{allocate_aligned(kRgbBytes * header->width * header->height), header->height, header->width};
  if (!image.data) throw std::bad_alloc();
  if (!write_pixels(*header, *work, image.data.get())) return {};
  return image;
}

}  // namespace dlio
