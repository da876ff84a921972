// Each image of a batch mixed with the one before it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "augment/picture.hpp"

namespace dlio {

// How an image is mixed: a box of it is the other one's, or each of its values is a mean of both.
struct Mixed {
  double share;  // of the image itself, 0 to 1; unused where there is a box
  std::size_t top, left, bottom, right;

  bool has_box() const noexcept { return top < bottom && left < right; }
};

// Mixes `count` images, which follow `first` without gaps, each with the one before it as that was, the first one with
// the last. Throws std::bad_alloc; the images then are as they were.
void mix(const Picture& first, std::size_t count, const Mixed* mixed, AugmentMemory& memory);

}  // namespace dlio
