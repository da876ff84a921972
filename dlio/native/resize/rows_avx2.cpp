#include "resize/rows.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include <cstring>

#include "resize/weights.hpp"

namespace dlio {
namespace {

constexpr std::size_t kAtOnce = 32;  // samples
constexpr std::size_t kVectors = kAtOnce / 8;

DLIO_AVX2 inline __m256i load_eight(const std::uint8_t* samples) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(samples)));
}

// Returns the sums' high bits as bytes, those below 0 as 0, those above 255 as 255.
DLIO_AVX2 inline __m256i narrow(const __m256i (&sums)[kVectors]) {
  __m256i high[kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) high[j] = _mm256_srai_epi32(sums[j], kWeightBits);
  const __m256i first = _mm256_packus_epi32(high[0], high[1]), second = _mm256_packus_epi32(high[2], high[3]);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), in_order);
}

DLIO_AVX2 inline __m256i mix(const WeightedRows& rows, const std::uint8_t* at) {
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  __m256i sums[kVectors] = {half, half, half, half};
  for (std::uint32_t i = 0; i < rows.count; ++i, at += rows.stride) {
    const __m256i weight = _mm256_set1_epi32(rows.weights[i]);
    for (std::size_t j = 0; j < kVectors; ++j) {
      sums[j] = _mm256_add_epi32(sums[j], _mm256_mullo_epi32(load_eight(at + 8 * j), weight));
    }
  }
  return narrow(sums);
}

}  // namespace

DLIO_AVX2 void mix_rows_avx2(const WeightedRows& shared_rows, std::size_t size, std::uint8_t* out) {
  const WeightedRows rows = shared_rows;  // bytes may alias everything
  std::size_t at = 0;
  for (; at + kAtOnce <= size; at += kAtOnce) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), mix(rows, rows.first + at));
  }
  if (at == size) return;
  alignas(32) std::uint8_t rest[kAtOnce];
  _mm256_store_si256(reinterpret_cast<__m256i*>(rest), mix(rows, rows.first + at));
  std::memcpy(out + at, rest, size - at);
}

}  // namespace dlio
#endif
