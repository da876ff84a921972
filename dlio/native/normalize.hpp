// Numbers of pixels by a table for each channel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

// How the channels of images lie in memory.
enum class Channels { kPlanes, kInterleaved };

// Sets each number of `out` to that of its pixel's level in its channel's table of 256 numbers.
template <class Number>
void normalize(const std::uint8_t* images, Channels layout, std::size_t num_images, std::size_t num_channels,
               std::size_t num_pixels, const Number* tables, Channels out_layout, Number* out) noexcept {
  const std::size_t step = layout == Channels::kPlanes ? 1 : num_channels;
  const std::size_t out_step = out_layout == Channels::kPlanes ? 1 : num_channels;
  const std::size_t image_size = num_channels * num_pixels;
  constexpr std::size_t kBlock = 4096;  // pixels, whose channels stay in the cache
  for (std::size_t image = 0; image < num_images; ++image, images += image_size, out += image_size) {
    for (std::size_t begin = 0; begin < num_pixels; begin += kBlock) {
      const std::size_t end = begin + kBlock < num_pixels ? begin + kBlock : num_pixels;
      for (std::size_t channel = 0; channel < num_channels; ++channel) {
        const Number* const table = tables + 256 * channel;
        const std::uint8_t* const from = images + (step == 1 ? channel * num_pixels : channel);
        Number* const to = out + (out_step == 1 ? channel * num_pixels : channel);
        for (std::size_t i = begin; i < end; ++i) to[i * out_step] = table[from[i * step]];
      }
    }
  }
}

}  // namespace dlio
