#include "resize/rows.hpp"

#ifdef DLIO_HAS_AVX2

#include <algorithm>
#include <cstring>

#include "resize/weights_avx512.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kTaps = 4;   // rows that are weighted together
constexpr std::size_t kAtOnce = 64;  // samples

struct Fours {
  __m512i sums[4][kDigits];  // of 16 samples each, as unpacking orders them
};

// Adds the samples of four rows, weighted.
DLIO_AVX512 inline void add_rows(const __m512i (&rows)[kTaps], const __m512i (&weights)[kDigits], Fours& fours) {
  const __m512i low[2] = {_mm512_unpacklo_epi8(rows[0], rows[1]), _mm512_unpacklo_epi8(rows[2], rows[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi8(rows[0], rows[1]), _mm512_unpackhi_epi8(rows[2], rows[3])};
  const __m512i samples[4] = {_mm512_unpacklo_epi16(low[0], low[1]), _mm512_unpackhi_epi16(low[0], low[1]),
                              _mm512_unpacklo_epi16(high[0], high[1]), _mm512_unpackhi_epi16(high[0], high[1])};
  for (int i = 0; i < 4; ++i) {
    for (int digit = 0; digit < kDigits; ++digit) {
      fours.sums[i][digit] = _mm512_dpbusd_epi32(fours.sums[i][digit], samples[i], weights[digit]);
    }
  }
}

// The digits of four rows' weights; those of rows that are not there are 0.
struct RowWeights {
  std::int8_t digits[kDigits][kTaps];
};

DLIO_AVX512 inline __m512i mix(const WeightedRows& rows, const RowWeights* all, const std::uint8_t* at,
                               __mmask64 wanted) {
  Fours fours;
  for (auto& sums : fours.sums) {
    sums[0] = _mm512_set1_epi32(1 << (kWeightBits - 1));
    sums[1] = sums[2] = _mm512_setzero_si512();
  }
  for (std::uint32_t i = 0; i < rows.count; i += kTaps, ++all) {
    __m512i samples[kTaps], weights[kDigits];
    for (std::uint32_t j = 0; j < kTaps; ++j, at += rows.stride) {
      samples[j] = i + j < rows.count ? _mm512_maskz_loadu_epi8(wanted, at) : _mm512_setzero_si512();
    }
    for (int digit = 0; digit < kDigits; ++digit) {
      std::int32_t four;
      std::memcpy(&four, all->digits[digit], sizeof four);
      weights[digit] = _mm512_set1_epi32(four);
    }
    add_rows(samples, weights, fours);
  }
  const __m512i low = _mm512_packus_epi32(join_digits(fours.sums[0]), join_digits(fours.sums[1]));
  const __m512i high = _mm512_packus_epi32(join_digits(fours.sums[2]), join_digits(fours.sums[3]));
  return _mm512_packus_epi16(low, high);
}

}  // namespace

DLIO_AVX512 void mix_rows_avx512(const WeightedRows& shared_rows, std::size_t size, std::uint8_t* out) {
  constexpr std::uint32_t kFew = 64;  // rows, whose weights are split once
  if (shared_rows.count > kFew) return mix_rows_avx2(shared_rows, size, out);
  const WeightedRows rows = shared_rows;  // bytes may alias everything
  RowWeights weights[kFew / kTaps] = {};
  for (std::uint32_t i = 0; i < rows.count; ++i) {
    std::int8_t digits[kDigits];
    split_weight(rows.weights[i], digits);
    for (int digit = 0; digit < kDigits; ++digit) weights[i / kTaps].digits[digit][i % kTaps] = digits[digit];
  }
  for (std::size_t at = 0; at < size; at += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, size - at);
    const __mmask64 wanted = ~std::uint64_t{0} >> (kAtOnce - count);
    _mm512_mask_storeu_epi8(out + at, wanted, mix(rows, weights, rows.first + at, wanted));
  }
}

}  // namespace dlio
#endif
