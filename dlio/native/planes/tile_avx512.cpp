// Tiles on x86-64 processors with AVX-512: the planes of a block are one vector, which is transposed bit by bit.
#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include "planes/tile.hpp"

#define DLIO_KERNEL DLIO_AVX512

namespace dlio {
namespace {

struct Bits {
  static constexpr bool kIsSlow = false;

  DLIO_KERNEL static std::uint64_t deposit(std::uint64_t bits, std::uint64_t set) noexcept {
    return _pdep_u64(bits, set);
  }
  DLIO_KERNEL static unsigned count(std::uint64_t set) noexcept { return static_cast<unsigned>(_mm_popcnt_u64(set)); }
};

// For each eight coefficients the bytes of the planes that are theirs, the last plane first.
alignas(64) constexpr std::uint8_t kByEights[64] = {56, 48, 40, 32, 24, 16, 8,  0, 57, 49, 41, 33, 25, 17, 9,  1,
                                                    58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3,
                                                    60, 52, 44, 36, 28, 20, 12, 4, 61, 53, 45, 37, 29, 21, 13, 5,
                                                    62, 54, 46, 38, 30, 22, 14, 6, 63, 55, 47, 39, 31, 23, 15, 7};

// Returns a byte of each coefficient: bit i of it is the coefficient's in the block's plane i.
DLIO_KERNEL inline __m512i transposed(const BlockPlanes& planes) noexcept {
  const __m512i rows = _mm512_permutexvar_epi8(_mm512_load_si512(kByEights), _mm512_load_si512(&planes));
  // Bit i of a byte of the result is the parity of the unit matrix's byte and byte 7 - i of the rows.
  const __m512i unit = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  return _mm512_gf2p8affine_epi64_epi8(unit, rows, 0);
}

DLIO_KERNEL inline void write_block(const BlockPlanes& planes, const std::uint8_t* offsets,
                                    std::int16_t* out) noexcept {
  const __m512i magnitude_bits = _mm512_set1_epi8((1 << kLevels) - 1);
  const __m512i bits = _mm512_and_si512(transposed(planes), magnitude_bits);
  const __m512i magnitudes = _mm512_mask_sub_epi8(bits, planes.mask, bits, _mm512_load_si512(offsets));
  const __m512i values = _mm512_mask_sub_epi8(magnitudes, planes.sign, _mm512_setzero_si512(), magnitudes);
  _mm512_store_si512(out, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(values)));
  _mm512_store_si512(out + 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(values, 1)));
}

}  // namespace
}  // namespace dlio

#include "planes/tile_kernel.hpp"

namespace dlio {

DLIO_KERNEL bool decode_tile_avx512(TileBytes tile, const TileShape& shape, const Preset& preset,
                                    std::int16_t* out) noexcept {
  return decode_tile_with_kernel(tile, shape, preset, out);
}

}  // namespace dlio
#endif
