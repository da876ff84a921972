#include "resize.hpp"

#include <algorithm>
#include <cstring>

#include "columns.hpp"
#include "dispatch.hpp"
#include "memory.hpp"

namespace dlio {
namespace {

constexpr std::size_t kChannels = 3;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);
constexpr std::size_t kLane = 32;  // samples of a row that are summed up together

// Sums up `count` rows of `row_bytes` samples, a multiple of kLane, each with its weight.
DLIO_FOR_AVX2_TOO
void mix_rows(const std::uint8_t* rows, std::size_t row_bytes, const std::int32_t* weights, std::uint32_t count,
              std::uint8_t* out) {
  for (std::size_t at = 0; at < row_bytes; at += kLane) {
    std::int32_t sums[kLane];
    std::fill_n(sums, kLane, kHalf);
    const std::uint8_t* source = rows + at;
    for (std::uint32_t i = 0; i < count; ++i, source += row_bytes) {
      for (std::size_t j = 0; j < kLane; ++j) sums[j] += source[j] * weights[i];
    }
    for (std::size_t j = 0; j < kLane; ++j) {
      out[at + j] = static_cast<std::uint8_t>(std::min(sums[j] >> kWeightBits, 255));
    }
  }
}

DLIO_FOR_AVX2_TOO
void place_row(const std::uint8_t* pixels, std::uint32_t y, const Target& target) {
  const std::size_t width = target.width;
  if (target.layout == Layout::height_width_channels) {
    std::uint8_t* out = target.data + y * width * kChannels;
    for (std::size_t x = 0; x < width; ++x) std::memcpy(out + x * kChannels, pixels + x * kPixelBytes, kChannels);
    return;
  }
  for (std::size_t c = 0; c < kChannels; ++c) {
    std::uint8_t* out = target.data + (c * target.height + y) * width;
    for (std::size_t x = 0; x < width; ++x) out[x] = pixels[x * kPixelBytes + c];
  }
}

struct Workspace {
  ColumnResizer columns;
  Weights rows;
  Scratch resized;  // the rows of the input at the width of the output

  void trim() noexcept {
    columns.trim();
    rows.trim();
    resized.trim();
  }
};

}  // namespace

void resize(const Pixels& pixels, const Part& part, bool flip, const Target& target) {
  Kept<Workspace> work;
  work->columns.prepare(part.columns, pixels.width, target.width, flip);
  work->rows.compute(part.rows, pixels.height, target.height);

  const std::size_t row_bytes = (target.width * kPixelBytes + kLane - 1) / kLane * kLane;
  std::uint8_t* const resized = work->resized.at_least(row_bytes * (std::size_t{pixels.height} + 1));
  for (std::size_t y = 0; y < pixels.height; ++y) {
    work->columns.resize(pixels.data + y * pixels.stride, resized + y * row_bytes);
  }
  std::uint8_t* const mixed = resized + row_bytes * pixels.height;
  for (std::uint32_t y = 0; y < target.height; ++y) {
    mix_rows(resized + work->rows.first(y) * row_bytes, row_bytes, work->rows.of(y), work->rows.count(y), mixed);
    place_row(mixed, y, target);
  }
}

}  // namespace dlio
