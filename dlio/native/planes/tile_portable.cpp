// Tiles on any processor.
#include <cstdint>
#include <cstring>

#include "planes/tile.hpp"

#define DLIO_KERNEL

namespace dlio {
namespace {

constexpr std::uint64_t kEachByte = 0x0101010101010101;

// For each byte of a set and byte of bits what they make up.
struct Deposits {
  Deposits() noexcept {
    for (unsigned set = 0; set < 256; ++set) {
      for (unsigned bits = 0; bits < 256; ++bits) of[set][bits] = slowly(bits, set);
    }
  }
  static std::uint8_t slowly(unsigned bits, unsigned set) noexcept {
    unsigned result = 0;
    for (; set != 0; set &= set - 1, bits >>= 1) result |= (bits & 1) != 0 ? set & (0 - set) : 0;
    return static_cast<std::uint8_t>(result);
  }

  std::uint8_t of[256][256];
};

const Deposits kDeposits;

struct Bits {
  static constexpr bool kIsSlow = true;

  // Returns how many coefficients the set has up to each byte: with the byte's own, as a byte.
  static std::uint64_t counts(std::uint64_t set) noexcept {
    set -= set >> 1 & 0x55 * kEachByte;
    set = (set & 0x33 * kEachByte) + (set >> 2 & 0x33 * kEachByte);
    return ((set + (set >> 4)) & 0x0F * kEachByte) * kEachByte;
  }
  // Each byte of the set finds its bits without those before it: they do not wait for each other.
  static std::uint64_t deposit(std::uint64_t bits, std::uint64_t set) noexcept {
    if (set == 0) return 0;
    const std::uint64_t before = counts(set) << 8;
    std::uint64_t deposited = 0;
    for (int shift = 0; shift < 64; shift += 8) {
      const std::uint64_t own = bits >> (before >> shift & 63);
      deposited |= std::uint64_t{kDeposits.of[set >> shift & 255][own & 255]} << shift;
    }
    return deposited;
  }
  static unsigned count(std::uint64_t set) noexcept { return static_cast<unsigned>(counts(set) >> 56); }
};

// The bits of a byte as bytes of 0 or 1.
struct Spread {
  Spread() noexcept {
    for (unsigned bits = 0; bits < 256; ++bits) {
      for (unsigned i = 0; i < 8; ++i) of[bits][i] = bits >> i & 1;
    }
  }
  std::uint64_t word(std::uint64_t bits) const noexcept {
    std::uint64_t word;
    std::memcpy(&word, of[bits & 255], sizeof word);
    return word;
  }

  std::uint8_t of[256][8];
};

const Spread kSpread;

void write_block(const BlockPlanes& planes, const std::uint8_t* offsets, std::int16_t* out) noexcept {
  std::uint8_t magnitudes[kBlockSize], nonzero[kBlockSize], negative[kBlockSize];
  for (int i = 0; i < kBlockSize; i += 8) {
    std::uint64_t eight = 0;
    for (int level = 0; level < kLevels; ++level) eight |= kSpread.word(planes.bit[level] >> i) << level;
    std::memcpy(magnitudes + i, &eight, sizeof eight);
    std::memcpy(nonzero + i, kSpread.of[planes.mask >> i & 255], 8);
    std::memcpy(negative + i, kSpread.of[planes.sign >> i & 255], 8);
  }
  for (int i = 0; i < kBlockSize; ++i) {
    const int magnitude = magnitudes[i] - offsets[i] * nonzero[i];
    out[i] = static_cast<std::int16_t>((magnitude ^ -negative[i]) + negative[i]);
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
