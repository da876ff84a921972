// Changes of an image's values, each by a table for its channel, and of its sharpness.
#pragma once

#include "augment/picture.hpp"

namespace dlio {

// Keeps the highest `bits` of each value, 0 to 8; as Pillow's ImageOps.posterize.
void posterize(const Picture& picture, int bits) noexcept;

// Inverts the values from `threshold` on; as Pillow's ImageOps.solarize.
void solarize(const Picture& picture, double threshold) noexcept;

// Stretches each channel to all values from 0 to 255; as Pillow's ImageOps.autocontrast.
void autocontrast(const Picture& picture) noexcept;

// Makes the values of each channel about equally frequent; as Pillow's ImageOps.equalize.
void equalize(const Picture& picture) noexcept;

// Moves each value away from the mean of its neighbours; as Pillow's ImageEnhance.Sharpness. Throws std::bad_alloc.
void sharpen(const Picture& picture, float factor, AugmentMemory& memory);

}  // namespace dlio
