// A tile: the blocks of some MCUs of a row, coded alone. docs/reference/decode-ready.md describes its bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "planes/presets.hpp"
#include "planes/record.hpp"

namespace dlio {

constexpr std::ptrdiff_t kBlockSize = 64;
constexpr int kMaxTileBlocks = static_cast<int>(kMaxTileMcus) * kMaxMcuBlocks;

// Levels of magnitude that have bits; what is beyond the last one has a byte.
constexpr int kLevels = 6;
constexpr int kMaxMagnitude = (1 << 14) - 1;  // of a coded magnitude: 6 bits and a byte
constexpr int kMinDc = -2048, kMaxDc = 2047, kMaxDcBits = 12;

struct TileShape {
  const Mcu* mcu;
  int num_mcus;

  int num_blocks() const noexcept { return num_mcus * mcu->num_blocks; }
};

// The coefficients of a block as sets: a magnitude's bits below the byte that it may have, signs, and all but zeros.
struct alignas(64) BlockPlanes {
  std::uint64_t bit[kLevels];
  std::uint64_t sign;
  std::uint64_t mask;
};

struct TileBytes {
  const std::uint8_t* data;
  std::size_t size;
};

// Readable bytes that must follow a tile: a decoder notices that it is beyond the end once for each level.
constexpr std::size_t kTilePadding = 16 * static_cast<std::size_t>(kMaxTileBlocks) + 64;

// Decodes a tile into the coefficients of its blocks, in natural order; `out` is aligned to 64 bytes. Returns false
// where its bits do not end where the tile does, or a DC coefficient has more bits than any.
using DecodeTile = bool (*)(TileBytes tile, const TileShape& shape, const Preset& preset, std::int16_t* out) noexcept;

bool decode_tile_on_any_processor(TileBytes tile, const TileShape& shape, const Preset& preset,
                                  std::int16_t* out) noexcept;

#if defined(__x86_64__)
// Need BMI2, and what their back ends have.
bool decode_tile_avx2(TileBytes tile, const TileShape& shape, const Preset& preset, std::int16_t* out) noexcept;
bool decode_tile_avx512(TileBytes tile, const TileShape& shape, const Preset& preset, std::int16_t* out) noexcept;
#endif

#if defined(__x86_64__)
// Whether the back end in use has AVX2, and the processor deposits and extracts bits in a few cycles.
bool deposits_quickly() noexcept;
#endif

// Returns the quickest one that the back end in use has.
DecodeTile tile_decoder() noexcept;

}  // namespace dlio
