// The encoder of tiles on x86-64 processors that extract bits in one instruction (BMI2): sets by AVX2.
#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include "planes/coded_planes.hpp"

#define DLIO_KERNEL __attribute__((target("avx2,bmi,bmi2,popcnt")))

namespace dlio {
namespace {

struct SetBits {
  DLIO_KERNEL static std::uint64_t extract(std::uint64_t bits, std::uint64_t set) noexcept {
    return _pext_u64(bits, set);
  }
  DLIO_KERNEL static int count(std::uint64_t set) noexcept { return static_cast<int>(_mm_popcnt_u64(set)); }
};

// Sets the 32 bits of `sets` from `shift` on to the highest bits of bytes.
DLIO_KERNEL inline void add_bits(__m256i bytes, int shift, std::uint64_t& sets) noexcept {
  sets |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes))} << shift;
}

// Packs 16 numbers each to bytes, in order.
DLIO_KERNEL inline __m256i pack(__m256i first, __m256i second) noexcept {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
}

DLIO_KERNEL inline void add_half(const std::int16_t* block, const std::uint8_t* offsets, int shift,
                                 CodedPlanes& planes) noexcept {
  const __m256i lowest = _mm256_set1_epi16((1 << kLevels) - 1);
  __m256i low[2], large[2], zero[2], negative[2];
  for (std::ptrdiff_t i = 0; i < 2; ++i) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 16 * i));
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(offsets + 16 * i));
    zero[i] = _mm256_cmpeq_epi16(values, _mm256_setzero_si256());
    negative[i] = _mm256_srai_epi16(values, 15);
    const __m256i magnitudes =
        _mm256_andnot_si256(zero[i], _mm256_add_epi16(_mm256_abs_epi16(values), _mm256_cvtepu8_epi16(bytes)));
    large[i] = _mm256_cmpgt_epi16(magnitudes, lowest);
    low[i] = _mm256_and_si256(magnitudes, lowest);
  }
  const __m256i bytes = pack(low[0], low[1]);
  add_bits(pack(zero[0], zero[1]), shift, planes.mask);
  add_bits(pack(negative[0], negative[1]), shift, planes.sign);
  add_bits(pack(large[0], large[1]), shift, planes.large);
  add_bits(_mm256_slli_epi16(bytes, 7), shift, planes.bit[0]);
  add_bits(_mm256_slli_epi16(bytes, 6), shift, planes.bit[1]);
  add_bits(_mm256_slli_epi16(bytes, 5), shift, planes.bit[2]);
  add_bits(_mm256_slli_epi16(bytes, 4), shift, planes.bit[3]);
  add_bits(_mm256_slli_epi16(bytes, 3), shift, planes.bit[4]);
  add_bits(_mm256_slli_epi16(bytes, 2), shift, planes.bit[5]);
}

DLIO_KERNEL inline CodedPlanes magnitudes_of(const std::int16_t* block, const std::uint8_t* offsets) noexcept {
  static_assert(kLevels == 6);
  constexpr std::uint64_t kFirst = 1;
  CodedPlanes planes{};
  add_half(block, offsets, 0, planes);
  add_half(block + 32, offsets + 32, 32, planes);
  planes.mask = ~planes.mask & ~kFirst;
  planes.sign &= ~kFirst;
  planes.large &= ~kFirst;
  for (std::uint64_t& set : planes.bit) set &= ~kFirst;
  return planes;
}

}  // namespace
}  // namespace dlio

#include "planes/tile_encoder_kernel.hpp"

namespace dlio {

const TileEncoder kAvx2Encoder{encode_tile, num_bits_of};

}  // namespace dlio
#endif
