// Encoded images, and decoded ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace dlio {

// What somebody else holds.
struct Bytes {
  const std::uint8_t* data;
  std::size_t size;
};

// Pixels, height x width x 3 bytes: red, green, blue.
struct Image {
  AlignedBytes data;
  std::uint32_t height;
  std::uint32_t width;
};

}  // namespace dlio
