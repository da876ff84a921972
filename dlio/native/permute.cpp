#include "permute.hpp"

#include <algorithm>

namespace dlio {
namespace {

std::uint64_t mix(std::uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

// A Feistel network over the numbers of some bits: the two halves take turns in being changed by a function of the
// other.
struct Cipher {
  const RoundKeys& keys;
  int low_bits;
  std::uint64_t low_mask;
  std::uint64_t high_mask;

  Cipher(const RoundKeys& round_keys, int bits) noexcept
      : keys(round_keys),
        low_bits(bits / 2),
        low_mask((std::uint64_t{1} << bits / 2) - 1),
        high_mask((std::uint64_t{1} << (bits - bits / 2)) - 1) {}

  std::uint64_t operator()(std::uint64_t value) const noexcept {
    std::uint64_t low = value & low_mask;
    std::uint64_t high = value >> low_bits;
    for (std::size_t i = 0; i < keys.size(); i += 2) {
      low ^= mix(high ^ keys[i]) & low_mask;
      high ^= mix(low ^ keys[i + 1]) & high_mask;
    }
    return high << low_bits | low;
  }
};

}  // namespace

void permute(const std::int64_t* positions, std::size_t count, std::uint64_t size, const RoundKeys& keys,
             std::int64_t* out) noexcept {
  const Cipher cipher(keys, std::max(2, 64 - __builtin_clzll(size - 1)));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t place = cipher(static_cast<std::uint64_t>(positions[i]));
    while (place >= size) place = cipher(place);
    out[i] = static_cast<std::int64_t>(place);
  }
}

}  // namespace dlio
