// Tiles on x86-64 processors that deposit bits in one instruction (BMI2): coefficients by AVX2.
#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include "planes/tile.hpp"

#define DLIO_KERNEL __attribute__((target("avx2,bmi,bmi2,popcnt")))

namespace dlio {
namespace {

struct Bits {
  static constexpr bool kIsSlow = false;

  DLIO_KERNEL static std::uint64_t deposit(std::uint64_t bits, std::uint64_t set) noexcept {
    return _pdep_u64(bits, set);
  }
  DLIO_KERNEL static unsigned count(std::uint64_t set) noexcept { return static_cast<unsigned>(_mm_popcnt_u64(set)); }
};

// Returns `value` in the bytes of the coefficients that `half` has, and zeros in the others.
DLIO_KERNEL inline __m256i spread(std::uint32_t half, char value) noexcept {
  const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                           2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(half)), byte_of);
  const __m256i all_ones = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
  return _mm256_and_si256(all_ones, _mm256_set1_epi8(value));
}

DLIO_KERNEL inline void write_half(const BlockPlanes& planes, int shift, const std::uint8_t* offsets,
                                   std::int16_t* out) noexcept {
  const auto half = [shift](std::uint64_t set) { return static_cast<std::uint32_t>(set >> shift); };
  const __m256i offset = _mm256_load_si256(reinterpret_cast<const __m256i*>(offsets));
  const __m256i nonzero = spread(half(planes.mask), -1);
  __m256i magnitudes = spread(half(planes.bit[0]), 1);
  for (int level = 1; level < kLevels; ++level) {
    magnitudes = _mm256_or_si256(magnitudes, spread(half(planes.bit[level]), static_cast<char>(1 << level)));
  }
  magnitudes = _mm256_sub_epi8(magnitudes, _mm256_and_si256(offset, nonzero));
  const __m256i negative = spread(half(planes.sign), -1);
  const __m256i values = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
  auto* const to = reinterpret_cast<__m256i*>(out);
  _mm256_store_si256(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(values)));
  _mm256_store_si256(to + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(values, 1)));
}

DLIO_KERNEL inline void write_block(const BlockPlanes& planes, const std::uint8_t* offsets,
                                    std::int16_t* out) noexcept {
  write_half(planes, 0, offsets, out);
  write_half(planes, 32, offsets + 32, out + 32);
}

}  // namespace
}  // namespace dlio

#include "planes/tile_kernel.hpp"

namespace dlio {

DLIO_KERNEL bool decode_tile_avx2(TileBytes tile, const TileShape& shape, const Preset& preset,
                                  std::int16_t* out) noexcept {
  return decode_tile_with_kernel(tile, shape, preset, out);
}

}  // namespace dlio
#endif
