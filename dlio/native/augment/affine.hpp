// Affine maps of an image onto itself: shears, translations, rotations, flips and turns by quarters.
#pragma once

#include <array>
#include <cstdint>

#include "augment/picture.hpp"

namespace dlio {

// The point of the source that a point (x, y) of the result is: (a x + b y + c, d x + e y + f), in pixels, whose
// centres lie at halves. What lies outside of the source has the colour `fill`. All numbers are finite, none is beyond
// 1e9.
struct Affine {
  double a, b, c, d, e, f;
  std::array<std::uint8_t, 3> fill;
};

// Moves the nearest pixels, byte for byte as Pillow's Image.transform(size, AFFINE, data, NEAREST, fillcolor=fill).
// Throws std::bad_alloc.
void move_nearest(const Picture& picture, const Affine& map, AugmentMemory& memory);

// The same of BILINEAR.
void move_bilinear(const Picture& picture, const Affine& map, AugmentMemory& memory);

}  // namespace dlio
