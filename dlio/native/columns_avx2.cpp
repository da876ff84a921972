// Resizing rows with AVX2, exactly: a weight is split into two halves, each of which one instruction multiplies with 16
// samples and adds up by twos.
#include "columns.hpp"

#ifdef DLIO_HAS_AVX2_COLUMNS

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define DLIO_AVX2 __attribute__((target("avx2")))

namespace dlio {
namespace {

constexpr std::size_t kTaps = 4;  // input pixels that are weighted together
constexpr int kLowBits = kWeightBits / 2;

struct Weights4 {
  std::int16_t high[kTaps];
  std::int16_t low[kTaps];
};

struct Row {
  const std::uint8_t* pixels;
  const std::uint32_t* firsts;
  const Weights4* weights;
  std::size_t num_fours;
};

DLIO_AVX2 inline __m256i times(__m256i samples, const std::int16_t (&weights)[kTaps]) {
  std::int64_t four;
  std::memcpy(&four, weights, sizeof four);
  return _mm256_madd_epi16(samples, _mm256_set1_epi64x(four));
}

// Returns the sums of output pixel `x`, those of two input pixels and of the two others apart: red, red, green, green
// in one lane, blue, blue and two to ignore in the other. `kFours` is num_fours where that is known, or 0.
template <std::size_t kFours>
DLIO_AVX2 inline __m256i sum_up(const Row& row, std::size_t x) {
  const __m256i by_channel = _mm256_setr_epi8(0, -1, 4, -1, 8, -1, 12, -1, 1, -1, 5, -1, 9, -1, 13, -1,  //
                                              2, -1, 6, -1, 10, -1, 14, -1, 3, -1, 7, -1, 11, -1, 15, -1);
  const std::size_t num_fours = kFours > 0 ? kFours : row.num_fours;
  const std::uint8_t* at = row.pixels + row.firsts[x];
  const Weights4* weights = row.weights + x * num_fours;
  __m256i high = _mm256_setzero_si256(), low = high;
  for (std::size_t i = 0; i < num_fours; ++i, at += kTaps * kPixelBytes) {
    const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m256i samples = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(pixels), by_channel);
    high = _mm256_add_epi32(high, times(samples, weights[i].high));
    low = _mm256_add_epi32(low, times(samples, weights[i].low));
  }
  return _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
}

// Returns two output pixels from their sums, as numbers: both red and green in one lane, both blue in the other.
DLIO_AVX2 inline __m256i round_off(__m256i first, __m256i second) {
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_hadd_epi32(first, second), half), kWeightBits);
}

// Returns four output pixels from `x` on: red and green of each, then blue and one to ignore of each.
template <std::size_t kFours>
DLIO_AVX2 inline __m128i resize_four(const Row& row, std::size_t x) {
  const __m256i first = round_off(sum_up<kFours>(row, x), sum_up<kFours>(row, x + 1));
  const __m256i second = round_off(sum_up<kFours>(row, x + 2), sum_up<kFours>(row, x + 3));
  const __m256i words = _mm256_packs_epi32(first, second);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// Bytes may alias everything: what the loops need is copied beforehand.
template <std::size_t kFours>
DLIO_AVX2 void resize_row(const Row row, const RowFormat format, std::uint8_t* out) {
  const __m128i by_pixel = _mm_setr_epi8(0, 1, 8, 2, 3, 10, 4, 5, 12, 6, 7, 14, -1, -1, -1, -1);
  const __m128i by_channel = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, -1, -1, -1, -1);
  if (!format.is_planar) {
    for (std::size_t x = 0; x < format.width; x += kPixelsAtOnce) {
      const __m128i pixels = _mm_shuffle_epi8(resize_four<kFours>(row, x), by_pixel);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), pixels);
    }
    return;
  }
  std::uint8_t* const planes[] = {out, out + format.run_stride(), out + 2 * format.run_stride()};
  for (std::size_t x = 0; x < format.width; x += kPixelsAtOnce) {
    const __m128i channels = _mm_shuffle_epi8(resize_four<kFours>(row, x), by_channel);
    _mm_storeu_si32(planes[0] + x, channels);
    _mm_storeu_si32(planes[1] + x, _mm_srli_si128(channels, 4));
    _mm_storeu_si32(planes[2] + x, _mm_srli_si128(channels, 8));
  }
}

}  // namespace

void Avx2Columns::prepare(const Stretch& part, std::uint32_t input, const RowFormat& format, bool flip) {
  format_ = format;
  weights_.compute(part, input, static_cast<std::uint32_t>(format.width));
  if (flip) weights_.reverse();
  num_fours_ = (weights_.largest_count() + kTaps - 1) / kTaps;
  const std::size_t num_outputs = (format.width + kPixelsAtOnce - 1) / kPixelsAtOnce * kPixelsAtOnce;
  auto* const firsts = reinterpret_cast<std::uint32_t*>(firsts_.at_least(num_outputs * sizeof(std::uint32_t)));
  auto* const spread = reinterpret_cast<Weights4*>(spread_.at_least(num_outputs * num_fours_ * sizeof(Weights4)));
  std::fill_n(firsts, num_outputs, 0u);
  std::fill_n(spread, num_outputs * num_fours_, Weights4{});
  const std::size_t last_first = input > kTaps * num_fours_ ? input - kTaps * num_fours_ : 0;
  for (std::uint32_t x = 0; x < format.width; ++x) {
    const std::size_t first = std::min<std::size_t>(weights_.first(x), last_first);
    firsts[x] = static_cast<std::uint32_t>(first * kPixelBytes);
    std::size_t tap = weights_.first(x) - first;
    for (std::uint32_t i = 0; i < weights_.count(x); ++i, ++tap) {
      Weights4& four = spread[x * num_fours_ + tap / kTaps];
      four.high[tap % kTaps] = static_cast<std::int16_t>(weights_.of(x)[i] >> kLowBits);
      four.low[tap % kTaps] = static_cast<std::int16_t>(weights_.of(x)[i] & ((1 << kLowBits) - 1));
    }
  }
}

void Avx2Columns::resize(const std::uint8_t* row, std::uint8_t* out) {
  const Row all{row, reinterpret_cast<const std::uint32_t*>(firsts_.data()),
                reinterpret_cast<const Weights4*>(spread_.data()), num_fours_};
  if (num_fours_ == 1) {
    resize_row<1>(all, format_, out);
  } else if (num_fours_ == 2) {
    resize_row<2>(all, format_, out);
  } else {
    resize_row<0>(all, format_, out);
  }
}

void Avx2Columns::trim() noexcept {
  weights_.trim();
  firsts_.trim();
  spread_.trim();
}

}  // namespace dlio
#endif
