// An image whose pixels are changed in place, and the memory that this needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace dlio {

// height x width pixels of three bytes without gaps: pixel by pixel, or channel by channel.
struct Picture {
  std::uint8_t* data;
  std::size_t height;
  std::size_t width;
  bool is_planar;

  std::size_t num_pixels() const noexcept { return height * width; }
  std::size_t num_bytes() const noexcept { return 3 * num_pixels(); }
  // From a pixel to the next of its row, and from a channel to the next.
  std::size_t pixel_step() const noexcept { return is_planar ? 1 : 3; }
  std::size_t channel_step() const noexcept { return is_planar ? num_pixels() : 1; }
};

struct AugmentMemory {
  Scratch source;  // the image as it was
  Scratch places;  // of one row

  void trim() noexcept {
    source.trim();
    places.trim();
  }
};

// Returns a copy of the image. Throws std::bad_alloc.
const std::uint8_t* copied(const Picture& picture, AugmentMemory& memory);

}  // namespace dlio
