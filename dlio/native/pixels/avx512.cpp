// Pixels on processors with AVX-512: four blocks at a time, planes of 64 pixels.
#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define DLIO_KERNEL DLIO_AVX512

namespace dlio {
namespace {

using Vec = __m512i;

DLIO_KERNEL inline Vec zero() noexcept { return _mm512_setzero_si512(); }
DLIO_KERNEL inline Vec set8(int value) noexcept { return _mm512_set1_epi8(static_cast<char>(value)); }
DLIO_KERNEL inline Vec set16(int value) noexcept { return _mm512_set1_epi16(static_cast<short>(value)); }
DLIO_KERNEL inline Vec set32(int value) noexcept { return _mm512_set1_epi32(value); }
DLIO_KERNEL inline Vec pair(int first, int second) noexcept {
  return set32(static_cast<int>(static_cast<unsigned>(second) << 16 | (static_cast<unsigned>(first) & 0xFFFF)));
}
DLIO_KERNEL inline Vec load(const void* at) noexcept { return _mm512_loadu_si512(at); }
DLIO_KERNEL inline void store(void* at, Vec vec) noexcept { _mm512_storeu_si512(at, vec); }
DLIO_KERNEL inline Vec load_widened(const std::uint8_t* at) noexcept {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
DLIO_KERNEL inline Vec load_repeated(const std::uint16_t* at) noexcept {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
DLIO_KERNEL inline Vec load_rows(const std::int16_t* const* blocks, int offset) noexcept {
  const auto row = [&](int block) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[block] + offset));
  };
  const Vec two = _mm512_inserti32x4(_mm512_castsi128_si512(row(0)), row(1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, row(2), 2), row(3), 3);
}

DLIO_KERNEL inline Vec add8(Vec a, Vec b) noexcept { return _mm512_add_epi8(a, b); }
DLIO_KERNEL inline Vec add16(Vec a, Vec b) noexcept { return _mm512_add_epi16(a, b); }
DLIO_KERNEL inline Vec sub16(Vec a, Vec b) noexcept { return _mm512_sub_epi16(a, b); }
DLIO_KERNEL inline Vec mul16(Vec a, Vec b) noexcept { return _mm512_mullo_epi16(a, b); }
DLIO_KERNEL inline Vec mul16_high(Vec a, Vec b) noexcept { return _mm512_mulhi_epi16(a, b); }
DLIO_KERNEL inline Vec add32(Vec a, Vec b) noexcept { return _mm512_add_epi32(a, b); }
DLIO_KERNEL inline Vec sub32(Vec a, Vec b) noexcept { return _mm512_sub_epi32(a, b); }
DLIO_KERNEL inline Vec and_(Vec a, Vec b) noexcept { return _mm512_and_si512(a, b); }
DLIO_KERNEL inline Vec dot(Vec a, Vec b) noexcept { return _mm512_madd_epi16(a, b); }
DLIO_KERNEL inline Vec add_dot(Vec sum, Vec a, Vec b) noexcept { return _mm512_dpwssd_epi32(sum, a, b); }
template <int kBits>
DLIO_KERNEL inline Vec shift16(Vec a) noexcept {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
DLIO_KERNEL inline Vec signed_shift16(Vec a) noexcept {
  return _mm512_srai_epi16(a, kBits);
}
template <int kBits>
DLIO_KERNEL inline Vec shift32(Vec a) noexcept {
  return _mm512_srai_epi32(a, kBits);
}
DLIO_KERNEL inline Vec low8(Vec a, Vec b) noexcept { return _mm512_unpacklo_epi8(a, b); }
DLIO_KERNEL inline Vec high8(Vec a, Vec b) noexcept { return _mm512_unpackhi_epi8(a, b); }
DLIO_KERNEL inline Vec low16(Vec a, Vec b) noexcept { return _mm512_unpacklo_epi16(a, b); }
DLIO_KERNEL inline Vec high16(Vec a, Vec b) noexcept { return _mm512_unpackhi_epi16(a, b); }
DLIO_KERNEL inline Vec pack32(Vec a, Vec b) noexcept { return _mm512_packs_epi32(a, b); }
DLIO_KERNEL inline Vec pack16_signed(Vec a, Vec b) noexcept { return _mm512_packs_epi16(a, b); }
DLIO_KERNEL inline bool exceeds_14_bits(Vec a) noexcept {
  return _mm512_test_epi16_mask(add16(a, set16(1 << 13)), set16(-(1 << 14))) != 0;
}

// Bytes of `even` and `odd` by turns, those out of range saturated.
DLIO_KERNEL inline Vec pack_by_turns(Vec even, Vec odd) noexcept {
  const Vec by_turns = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  return _mm512_shuffle_epi8(_mm512_packus_epi16(even, odd), by_turns);
}

DLIO_KERNEL inline void store_two_rows(Vec rows, std::uint8_t* out, std::size_t stride) noexcept {
  const Vec by_row = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), rows);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(by_row));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + stride), _mm512_extracti64x4_epi64(by_row, 1));
}

DLIO_KERNEL inline void store_pixels(Vec red, Vec green, Vec blue, std::uint8_t* out, std::size_t x,
                                     std::size_t plane_step) noexcept {
  store(out + x, red);
  store(out + plane_step + x, green);
  store(out + 2 * plane_step + x, blue);
}

}  // namespace
}  // namespace dlio

#include "pixels/kernel.hpp"
#include "pixels/x86.hpp"

namespace dlio {

const PixelKernels kAvx512Kernels{transform_blocks, mix_colours, true};

}  // namespace dlio
#endif
