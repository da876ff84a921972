#include "resize/rows.hpp"

#ifdef DLIO_HAS_AVX2

#include <algorithm>
#include <cstring>

#include "resize/weights_avx512.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kTaps = 4;  // rows that are weighted together

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

// The digits of four rows' weights, which meet their samples; those of rows that are not there are 0.
DLIO_AVX512 inline void load_weights(const std::int32_t* weights, std::uint32_t count, __m512i (&out)[kDigits]) {
  const auto there = static_cast<__mmask8>((1u << count) - 1);
  __m128i four = _mm_maskz_loadu_epi32(there, weights);
  for (__m512i& digits : out) {
    const __m128i lowest = _mm_srai_epi32(_mm_slli_epi32(four, 32 - kDigitBits), 32 - kDigitBits);
    digits = _mm512_broadcastd_epi32(_mm_cvtepi32_epi8(four));
    four = _mm_srai_epi32(_mm_sub_epi32(four, lowest), kDigitBits);
  }
}

DLIO_AVX512 inline void load_rows(const std::uint8_t* at, std::size_t stride, std::uint32_t count,
                                  __m512i (&out)[kTaps]) {
  for (std::uint32_t j = 0; j < kTaps; ++j) out[j] = _mm512_loadu_si512(at + std::min(j, count - 1) * stride);
}

DLIO_AVX512 inline void begin_sums(Fours& fours) {
  for (auto& sums : fours.sums) {
    sums[0] = _mm512_set1_epi32(1 << (kWeightBits - 1));
    sums[1] = sums[2] = _mm512_setzero_si512();
  }
}

// Writes `count` of 64 output samples.
DLIO_AVX512 inline void end_sums(const Fours& fours, std::size_t count, std::uint8_t* out) {
  const __m512i low = _mm512_packus_epi32(join_digits(fours.sums[0]), join_digits(fours.sums[1]));
  const __m512i high = _mm512_packus_epi32(join_digits(fours.sums[2]), join_digits(fours.sums[3]));
  const __m512i samples = _mm512_packus_epi16(low, high);
  if (count >= kSamplesAtOnce) {
    _mm512_storeu_si512(out, samples);
  } else {
    _mm512_mask_storeu_epi8(out, (std::uint64_t{1} << count) - 1, samples);
  }
}

// Most output rows are made of four rows at most: their weights stay in registers.
DLIO_AVX512 void mix_four_rows(const WeightedRows rows, std::size_t size, std::uint8_t* out) {
  __m512i weights[kDigits];
  load_weights(rows.weights, rows.count, weights);
  for (std::size_t at = 0; at < size; at += kSamplesAtOnce) {
    Fours fours;
    __m512i samples[kTaps];
    load_rows(rows.first + at, rows.stride, rows.count, samples);
    begin_sums(fours);
    add_rows(samples, weights, fours);
    end_sums(fours, size - at, out + at);
  }
}

DLIO_AVX512 void mix_many_rows(const WeightedRows rows, std::size_t size, std::uint8_t* out) {
  for (std::size_t at = 0; at < size; at += kSamplesAtOnce) {
    Fours fours;
    begin_sums(fours);
    for (std::uint32_t i = 0; i < rows.count; i += kTaps) {
      const std::uint32_t count = std::min(kTaps, rows.count - i);
      __m512i samples[kTaps], weights[kDigits];
      load_weights(rows.weights + i, count, weights);
      load_rows(rows.first + at + i * rows.stride, rows.stride, count, samples);
      add_rows(samples, weights, fours);
    }
    end_sums(fours, size - at, out + at);
  }
}

}  // namespace

void mix_rows_avx512(const WeightedRows& rows, std::size_t size, std::uint8_t* out) {
  if (rows.count <= kTaps) {
    mix_four_rows(rows, size, out);
  } else {
    mix_many_rows(rows, size, out);
  }
}

}  // namespace dlio
#endif
