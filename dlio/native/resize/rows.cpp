#include "resize/rows.hpp"

#include <algorithm>
#include <cstring>

#include "resize/weights.hpp"

namespace dlio {

void mix_rows(const WeightedRows& rows, std::size_t size, std::uint8_t* out) {
  constexpr std::size_t kAtOnce = 32;
  for (std::size_t at = 0; at < size; at += kAtOnce) {
    std::int32_t sums[kAtOnce];
    std::fill_n(sums, kAtOnce, 1 << (kWeightBits - 1));
    const std::uint8_t* source = rows.first + at;
    for (std::uint32_t i = 0; i < rows.count; ++i, source += rows.stride) {
      for (std::size_t j = 0; j < kAtOnce; ++j) sums[j] += source[j] * rows.weights[i];
    }
    std::uint8_t mixed[kAtOnce];
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      mixed[j] = static_cast<std::uint8_t>(std::min(std::max(sums[j] >> kWeightBits, 0), 255));
    }
    std::memcpy(out + at, mixed, std::min(size - at, kAtOnce));
  }
}

}  // namespace dlio
