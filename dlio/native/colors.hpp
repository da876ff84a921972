// Brightness, contrast and saturation of decoded images, in place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

// Pixels of an image, in either layout: channel c of pixel i lies at data[i * pixel_step + c * channel_step].
struct ColorPixels {
  std::uint8_t* data;
  std::size_t count;
  std::size_t pixel_step;
  std::size_t channel_step;
};

// The numbers are part of the Python interface.
enum class ColorStep : std::uint8_t { brightness = 0, contrast = 1, saturation = 2 };

// Moves each value away from black, from the image's mean grey or from its pixel's grey: at `factor` 0 it becomes that,
// at 1 it stays. Equal to Pillow's ImageEnhance byte for byte.
void adjust(const ColorPixels& pixels, ColorStep step, float factor) noexcept;

}  // namespace dlio
