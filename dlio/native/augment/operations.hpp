// The operations of AutoAugment, RandAugment and TrivialAugment by their numbers.
#pragma once

#include <array>
#include <cstdint>

#include "augment/picture.hpp"

namespace dlio {

// The numbers are part of the Python interface; the first three are those of ColorStep.
enum class Operation : std::uint8_t {
  brightness = 0,
  contrast = 1,
  saturation = 2,
  sharpness = 3,
  posterize = 4,
  solarize = 5,
  autocontrast = 6,
  equalize = 7,
  nearest = 8,
  bilinear = 9,
  none = 10,
};

// What an operation needs: a factor, the bits, a threshold, or the six numbers of a map and three of the colour
// outside.
using Numbers = std::array<double, 9>;

// Returns whether an operation can be carried out with these numbers, whatever the image.
bool is_possible(std::uint8_t operation, const Numbers& numbers) noexcept;

// Changes an image, to the bytes that Pillow makes of it; the operation must be possible. Throws std::bad_alloc.
void change(const Picture& picture, Operation operation, const Numbers& numbers, AugmentMemory& memory);

}  // namespace dlio
