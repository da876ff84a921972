// Tiles on any processor.
#include <cstdint>

#include "planes/tile.hpp"

#define DLIO_KERNEL

namespace dlio {
namespace {

// For each byte of a set and byte of bits what they make up, and for each byte how many bits it has.
struct Tables {
  Tables() noexcept {
    for (unsigned set = 0; set < 256; ++set) {
      counts[set] = static_cast<std::uint8_t>(__builtin_popcount(set));
      for (unsigned bits = 0; bits < 256; ++bits) deposited[set][bits] = slowly(bits, set);
    }
  }
  static std::uint8_t slowly(unsigned bits, unsigned set) noexcept {
    unsigned result = 0;
    for (; set != 0; set &= set - 1, bits >>= 1) result |= (bits & 1) != 0 ? set & (0 - set) : 0;
    return static_cast<std::uint8_t>(result);
  }

  std::uint8_t deposited[256][256];
  std::uint8_t counts[256];
};

const Tables kTables;

struct Bits {
  static std::uint64_t deposit(std::uint64_t bits, std::uint64_t set) noexcept {
    std::uint64_t deposited = 0;
    for (int shift = 0; set >> shift != 0; shift += 8) {
      const unsigned part = set >> shift & 255;
      deposited |= std::uint64_t{kTables.deposited[part][bits & 255]} << shift;
      bits >>= kTables.counts[part];
      if (shift == 56) break;
    }
    return deposited;
  }
  static unsigned count(std::uint64_t set) noexcept {
    unsigned count = 0;
    for (; set != 0; set >>= 8) count += kTables.counts[set & 255];
    return count;
  }
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
