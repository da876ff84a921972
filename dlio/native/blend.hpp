// Pillow's blend of two values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dlio {

constexpr float kLargestFactor = 1e6F;  // beyond it any difference is beyond a byte, and may be beyond an int

// Returns `from` at `factor` 0, `value` at 1, and what lies between or beyond, cut off at a byte. The result is clamped
// as an int: as a float, which may be no number, it is not vectorized and takes ten times as long.
inline std::uint8_t blend(int from, int value, float factor) noexcept {
  const float blended = static_cast<float>(from) + factor * static_cast<float>(value - from);
  return static_cast<std::uint8_t>(std::min(std::max(static_cast<int>(blended), 0), 255));
}

}  // namespace dlio
