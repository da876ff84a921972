// Tiles on any processor.
#include <cstdint>

#include "planes/tile.hpp"

#define DLIO_KERNEL

namespace dlio {
namespace {

struct Bits {
  static std::uint64_t deposit(std::uint64_t bits, std::uint64_t set) noexcept {
    std::uint64_t deposited = 0;
    for (; set != 0; set &= set - 1, bits >>= 1) deposited |= set & (0 - set) & (0 - (bits & 1));
    return deposited;
  }
  static unsigned count(std::uint64_t set) noexcept { return static_cast<unsigned>(__builtin_popcountll(set)); }
};

void write_block(const BlockPlanes& planes, const std::uint8_t* offsets, std::int16_t* out) noexcept {
  for (int i = 0; i < kBlockSize; ++i) out[i] = 0;
  for (std::uint64_t set = planes.mask; set != 0; set &= set - 1) {
    const int i = __builtin_ctzll(set);
    int magnitude = 0;
    for (int level = 0; level < kLevels; ++level) magnitude |= static_cast<int>(planes.bit[level] >> i & 1) << level;
    magnitude -= offsets[i];
    out[i] = static_cast<std::int16_t>((planes.sign >> i & 1) != 0 ? -magnitude : magnitude);
  }
}

}  // namespace
}  // namespace dlio

#include "planes/tile_kernel.hpp"

namespace dlio {

bool decode_tile_on_any_processor(TileBytes tile, const TileShape& shape, const Preset& preset,
                                  std::int16_t* out) noexcept {
  return decode_tile_with_kernel(tile, shape, preset, out);
}

}  // namespace dlio
