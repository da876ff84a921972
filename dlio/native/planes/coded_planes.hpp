// The coefficients of a block as sets, for the encoder.
#pragma once

#include <cstdint>

#include "planes/tile.hpp"

namespace dlio {

// Of magnitudes with the preset's offsets, those of zeros being 0, and without the first coefficient.
struct CodedPlanes {
  std::uint64_t mask;  // all but zeros
  std::uint64_t sign;  // negative ones
  std::uint64_t bit[kLevels];
  std::uint64_t large;  // of more bits than kLevels
};

}  // namespace dlio
