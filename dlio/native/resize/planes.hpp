// Pixels of three bytes parted into planes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

// Where a row of pixels goes: red, green, blue.
struct PlaneRows {
  std::uint8_t* red;
  std::uint8_t* green;
  std::uint8_t* blue;
};

// Parts a row of pixels, mirrored where `flip`.
void part_row(const std::uint8_t* pixels, std::size_t num_pixels, bool flip, const PlaneRows& out) noexcept;

}  // namespace dlio
