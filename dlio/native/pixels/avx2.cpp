// Pixels on processors with AVX2: two blocks at a time, 32 pixels.
#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define DLIO_KERNEL DLIO_AVX2

namespace dlio {
namespace {

using Vec = __m256i;

DLIO_KERNEL inline Vec zero() noexcept { return _mm256_setzero_si256(); }
DLIO_KERNEL inline Vec set8(int value) noexcept { return _mm256_set1_epi8(static_cast<char>(value)); }
DLIO_KERNEL inline Vec set16(int value) noexcept { return _mm256_set1_epi16(static_cast<short>(value)); }
DLIO_KERNEL inline Vec set32(int value) noexcept { return _mm256_set1_epi32(value); }
DLIO_KERNEL inline Vec pair(int first, int second) noexcept {
  return set32(static_cast<int>(static_cast<unsigned>(second) << 16 | (static_cast<unsigned>(first) & 0xFFFF)));
}
DLIO_KERNEL inline Vec load(const void* at) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
DLIO_KERNEL inline void store(void* at, Vec vec) noexcept { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), vec); }
DLIO_KERNEL inline __m128i load_half(const void* at) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
DLIO_KERNEL inline Vec load_widened(const std::uint8_t* at) noexcept { return _mm256_cvtepu8_epi16(load_half(at)); }
DLIO_KERNEL inline Vec load_repeated(const std::uint16_t* at) noexcept {
  return _mm256_broadcastsi128_si256(load_half(at));
}
DLIO_KERNEL inline Vec load_rows(const std::int16_t* const* blocks, int offset) noexcept {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(blocks[0] + offset)), load_half(blocks[1] + offset),
                                 1);
}

DLIO_KERNEL inline Vec add8(Vec a, Vec b) noexcept { return _mm256_add_epi8(a, b); }
DLIO_KERNEL inline Vec add16(Vec a, Vec b) noexcept { return _mm256_add_epi16(a, b); }
DLIO_KERNEL inline Vec sub16(Vec a, Vec b) noexcept { return _mm256_sub_epi16(a, b); }
DLIO_KERNEL inline Vec mul16(Vec a, Vec b) noexcept { return _mm256_mullo_epi16(a, b); }
DLIO_KERNEL inline Vec mul16_high(Vec a, Vec b) noexcept { return _mm256_mulhi_epi16(a, b); }
DLIO_KERNEL inline Vec add32(Vec a, Vec b) noexcept { return _mm256_add_epi32(a, b); }
DLIO_KERNEL inline Vec sub32(Vec a, Vec b) noexcept { return _mm256_sub_epi32(a, b); }
DLIO_KERNEL inline Vec and_(Vec a, Vec b) noexcept { return _mm256_and_si256(a, b); }
DLIO_KERNEL inline Vec dot(Vec a, Vec b) noexcept { return _mm256_madd_epi16(a, b); }
DLIO_KERNEL inline Vec add_dot(Vec sum, Vec a, Vec b) noexcept { return add32(sum, dot(a, b)); }
template <int kBits>
DLIO_KERNEL inline Vec shift16(Vec a) noexcept {
  return _mm256_srli_epi16(a, kBits);
}
template <int kBits>
DLIO_KERNEL inline Vec signed_shift16(Vec a) noexcept {
  return _mm256_srai_epi16(a, kBits);
}
template <int kBits>
DLIO_KERNEL inline Vec shift32(Vec a) noexcept {
  return _mm256_srai_epi32(a, kBits);
}
DLIO_KERNEL inline Vec low8(Vec a, Vec b) noexcept { return _mm256_unpacklo_epi8(a, b); }
DLIO_KERNEL inline Vec high8(Vec a, Vec b) noexcept { return _mm256_unpackhi_epi8(a, b); }
DLIO_KERNEL inline Vec low16(Vec a, Vec b) noexcept { return _mm256_unpacklo_epi16(a, b); }
DLIO_KERNEL inline Vec high16(Vec a, Vec b) noexcept { return _mm256_unpackhi_epi16(a, b); }
DLIO_KERNEL inline Vec pack32(Vec a, Vec b) noexcept { return _mm256_packs_epi32(a, b); }
DLIO_KERNEL inline Vec pack16_signed(Vec a, Vec b) noexcept { return _mm256_packs_epi16(a, b); }
DLIO_KERNEL inline bool exceeds_14_bits(Vec a) noexcept {
  return _mm256_testz_si256(add16(a, set16(1 << 13)), set16(-(1 << 14))) == 0;
}

// Bytes of `even` and `odd` by turns, those out of range saturated.
DLIO_KERNEL inline Vec pack_by_turns(Vec even, Vec odd) noexcept {
  const Vec by_turns = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,  //
                                        0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  return _mm256_shuffle_epi8(_mm256_packus_epi16(even, odd), by_turns);
}

DLIO_KERNEL inline void store_two_rows(Vec rows, std::uint8_t* out, std::size_t stride) noexcept {
  const Vec by_row = _mm256_permute4x64_epi64(rows, 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(by_row));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + stride), _mm256_extracti128_si256(by_row, 1));
}

// Four bytes for each pixel.
DLIO_KERNEL inline void store_pixels(Vec red, Vec green, Vec blue, std::uint8_t* out, std::size_t x,
                                     std::size_t) noexcept {
  const Vec red_green[2] = {low8(red, green), high8(red, green)}, blue_x[2] = {low8(blue, blue), high8(blue, blue)};
  // Pixels 0 and 16, 4 and 20, 8 and 24, 12 and 28.
  const Vec fours[4] = {low16(red_green[0], blue_x[0]), high16(red_green[0], blue_x[0]), low16(red_green[1], blue_x[1]),
                        high16(red_green[1], blue_x[1])};
  out += 4 * x;
  store(out, _mm256_permute2x128_si256(fours[0], fours[1], 0x20));
  store(out + 32, _mm256_permute2x128_si256(fours[2], fours[3], 0x20));
  store(out + 64, _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  store(out + 96, _mm256_permute2x128_si256(fours[2], fours[3], 0x31));
}

}  // namespace
}  // namespace dlio

#include "pixels/kernel.hpp"
#include "pixels/x86.hpp"

namespace dlio {

const PixelKernels kAvx2Kernels{transform_blocks, mix_colours, false};

}  // namespace dlio
#endif
