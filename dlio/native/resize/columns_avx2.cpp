// Resizing rows with AVX2, exactly: a weight is split into two halves, each of which one instruction multiplies with 16
// samples and adds up by twos.
#include "resize/columns.hpp"

#ifdef DLIO_HAS_AVX2

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace dlio {
namespace {

constexpr std::size_t kTaps = 4;  // input pixels that are weighted together
constexpr int kLowBits = kWeightBits / 2;

// The weights of four pixels as they meet their samples: one lane for two pixels, each channel a pair.
struct Weights4 {
  std::int16_t high[kTaps * kPixelBytes];
  std::int16_t low[kTaps * kPixelBytes];

  void set(std::size_t tap, std::int32_t weight) noexcept {
    for (std::size_t c = 0; c < kPixelBytes; ++c) {
      const std::size_t at = tap / 2 * 2 * kPixelBytes + 2 * c + tap % 2;
      high[at] = static_cast<std::int16_t>(weight >> kLowBits);
      low[at] = static_cast<std::int16_t>(weight & ((1 << kLowBits) - 1));
    }
  }
};

struct Row {
  const std::uint8_t* pixels;
  const std::uint32_t* firsts;
  const Weights4* weights;
  std::size_t num_fours;
};

DLIO_AVX2 inline __m256i times(__m256i samples, const std::int16_t (&weights)[kTaps * kPixelBytes]) {
  return _mm256_madd_epi16(samples, _mm256_load_si256(reinterpret_cast<const __m256i*>(weights)));
}

// Returns the sums of output pixel `x`, those of two input pixels in one lane and of the two others in the other.
// `kFours` is num_fours where that is known, or 0.
template <std::size_t kFours>
DLIO_AVX2 inline __m256i sum_up(const Row& row, std::size_t x) {
  const __m256i by_channel = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                                              8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
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

// Returns output pixels `x` and `x + 4`, a lane each, as numbers.
template <std::size_t kFours>
DLIO_AVX2 inline __m256i resize_two(const Row& row, std::size_t x) {
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  const __m256i first = sum_up<kFours>(row, x), second = sum_up<kFours>(row, x + 4);
  const __m256i outer = _mm256_blend_epi32(first, second, 0xF0);
  const __m256i inner = _mm256_permute2x128_si256(first, second, 0x21);
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(outer, inner), half), kWeightBits);
}

// Returns eight output pixels from `x` on: red, green, blue, and one to ignore of each.
template <std::size_t kFours>
DLIO_AVX2 inline __m256i resize_eight(const Row& row, std::size_t x) {
  const __m256i even = _mm256_packus_epi32(resize_two<kFours>(row, x), resize_two<kFours>(row, x + 1));
  const __m256i odd = _mm256_packus_epi32(resize_two<kFours>(row, x + 2), resize_two<kFours>(row, x + 3));
  return _mm256_packus_epi16(even, odd);
}

DLIO_AVX2 inline void store_interleaved(__m256i pixels, std::uint8_t* out) {
  const __m256i without_gaps = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,  //
                                                0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i fours = _mm256_shuffle_epi8(pixels, without_gaps);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(fours));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 12), _mm256_extracti128_si256(fours, 1));
}

DLIO_AVX2 inline void store_planar(__m256i pixels, std::uint8_t* const (&planes)[3], std::size_t x) {
  const __m256i by_channel = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                              0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i fours = _mm256_shuffle_epi8(pixels, by_channel);
  const __m256i eights = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m128i red_green = _mm256_castsi256_si128(eights);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(planes[0] + x), red_green);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(planes[1] + x), _mm_unpackhi_epi64(red_green, red_green));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(planes[2] + x), _mm256_extracti128_si256(eights, 1));
}

// Bytes may alias everything: what the loops need is copied beforehand.
template <std::size_t kFours>
DLIO_AVX2 void resize_row(const Row row, const RowFormat format, std::uint8_t* out) {
  if (!format.is_planar) {
    for (std::size_t x = 0; x < format.width; x += kPixelsAtOnce) {
      store_interleaved(resize_eight<kFours>(row, x), out + 3 * x);
    }
    return;
  }
  std::uint8_t* const planes[] = {out, out + format.run_stride(), out + 2 * format.run_stride()};
  for (std::size_t x = 0; x < format.width; x += kPixelsAtOnce) {
    store_planar(resize_eight<kFours>(row, x), planes, x);
  }
}

}  // namespace

void Avx2Columns::prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format, bool flip) {
  format_ = format;
  weights_.compute(filter, part, input, static_cast<std::uint32_t>(format.width));
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
      spread[x * num_fours_ + tap / kTaps].set(tap % kTaps, weights_.of(x)[i]);
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
