// Weights as three digits of 8 bits with signs, by which one instruction multiplies four samples each and adds up.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "dispatch.hpp"
#include "resize/weights.hpp"

namespace dlio {

constexpr int kDigits = 3, kDigitBits = 8;

// Sets the digits of a weight, the lowest first: it has kWeightBits and a few more, so that the highest digit fits.
inline void split_weight(std::int32_t weight, std::int8_t (&digits)[kDigits]) noexcept {
  for (std::int8_t& digit : digits) {
    digit = static_cast<std::int8_t>(weight & 0xFF);
    weight = (weight - digit) >> kDigitBits;
  }
}

// Adds up the sums of each digit, rounds and shifts them to where samples are.
DLIO_AVX512 inline __m512i join_digits(const __m512i (&sums)[kDigits]) noexcept {
  const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(sums[2], kDigitBits), sums[1]);
  return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, kDigitBits), sums[0]), kWeightBits);
}

}  // namespace dlio
