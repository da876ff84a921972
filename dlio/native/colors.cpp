#include "colors.hpp"

#include <algorithm>
#include <cstring>

#include "blend.hpp"
#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::size_t kAtOnce = 64;  // pixels

// A few pixels by channel, which compilers turn into vectors.
struct Block {
  std::uint8_t channels[3][kAtOnce];
  std::uint8_t grey[kAtOnce];
};

// Bytes may alias everything: what the loops need is passed by value.
inline void gather(const std::uint8_t* from, std::size_t step, std::size_t size, std::uint8_t* to) noexcept {
  if (step == 1) {
    std::memcpy(to, from, size);
  } else {
    for (std::size_t i = 0; i < size; ++i) to[i] = from[i * 3];
  }
}

inline void scatter(const std::uint8_t* from, std::size_t step, std::size_t size, std::uint8_t* to) noexcept {
  if (step == 1) {
    std::memcpy(to, from, size);
  } else {
    for (std::size_t i = 0; i < size; ++i) to[i * 3] = from[i];
  }
}

// Sets the pixels of a block, and their grey, which is that of ITU-R 601-2 as Pillow rounds it.
inline void load(const ColorPixels& pixels, std::size_t first, std::size_t size, Block& block) noexcept {
  for (std::size_t c = 0; c < 3; ++c) {
    const std::uint8_t* const from = pixels.data + c * pixels.channel_step + first * pixels.pixel_step;
    gather(from, pixels.pixel_step, size, block.channels[c]);
  }
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    const unsigned sum = block.channels[0][i] * 19595u + block.channels[1][i] * 38470u + block.channels[2][i] * 7471u;
    block.grey[i] = static_cast<std::uint8_t>((sum + 0x8000u) >> 16);
  }
}

DLIO_FOR_AVX2_TOO
std::uint64_t sum_of_greys(const ColorPixels& pixels) noexcept {
  Block block{};
  std::uint64_t sum = 0;
  for (std::size_t first = 0; first < pixels.count; first += kAtOnce) {
    const std::size_t size = std::min(kAtOnce, pixels.count - first);
    load(pixels, first, size, block);
    unsigned block_sum = 0;
    for (std::size_t i = 0; i < size; ++i) block_sum += block.grey[i];
    sum += block_sum;
  }
  return sum;
}

DLIO_FOR_AVX2_TOO
void blend_with(int value, std::uint8_t* bytes, std::size_t num_bytes, float factor) noexcept {
  for (std::size_t i = 0; i < num_bytes; ++i) bytes[i] = blend(value, bytes[i], factor);
}

DLIO_FOR_AVX2_TOO
void blend_with_grey(const ColorPixels& pixels, float factor) noexcept {
  Block block{};
  for (std::size_t first = 0; first < pixels.count; first += kAtOnce) {
    const std::size_t size = std::min(kAtOnce, pixels.count - first);
    load(pixels, first, size, block);
    for (std::size_t c = 0; c < 3; ++c) {
      std::uint8_t* const channel = block.channels[c];
      for (std::size_t i = 0; i < kAtOnce; ++i) channel[i] = blend(block.grey[i], channel[i], factor);
      std::uint8_t* const to = pixels.data + c * pixels.channel_step + first * pixels.pixel_step;
      scatter(channel, pixels.pixel_step, size, to);
    }
  }
}

}  // namespace

void adjust(const ColorPixels& pixels, ColorStep step, float factor) noexcept {
  if (factor == 1 || pixels.count == 0) return;
  factor = std::min(std::max(factor, -kLargestFactor), kLargestFactor);
  if (step == ColorStep::saturation) {
    blend_with_grey(pixels, factor);
  } else if (step == ColorStep::contrast) {
    const double mean = static_cast<double>(sum_of_greys(pixels)) / static_cast<double>(pixels.count);
    blend_with(static_cast<int>(mean + 0.5), pixels.data, 3 * pixels.count, factor);
  } else {
    blend_with(0, pixels.data, 3 * pixels.count, factor);
  }
}

}  // namespace dlio
