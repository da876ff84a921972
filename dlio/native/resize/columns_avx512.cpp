#include "resize/columns_avx512.hpp"

#ifdef DLIO_HAS_AVX2

#include <algorithm>
#include <cstring>

#include "resize/weights_avx512.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kTaps = 4;      // input pixels that are weighted together
constexpr std::uint32_t kOutputs = 16;  // pixels that are made together
constexpr std::size_t kSamples = std::size_t{kOutputs} * kTaps;
constexpr std::uint32_t kReach = 64;  // bytes of which any can be picked

// What 16 output pixels take of four input pixels each.
struct Weights64 {
  std::int8_t digits[kDigits][kSamples];
};

// Sixteen output pixels, behind which their weights lie.
struct alignas(64) Group {
  std::uint8_t picks[kReach];      // of the first four input pixels of each, from the group's first on
  std::int32_t offsets[kOutputs];  // of these, from the beginning of the row
  std::uint32_t first;
};

constexpr std::size_t group_bytes(std::size_t num_fours) noexcept {
  return sizeof(Group) + num_fours * sizeof(Weights64);
}

struct Groups {
  const std::uint8_t* at;
  std::size_t num_fours;
};

// Returns 16 output pixels of a plane. `kNear` as is_near_, `kFours` is num_fours where that is known, or 0.
template <bool kNear, std::size_t kFours>
DLIO_AVX512 inline __m128i resize_group(const std::uint8_t* plane, const Group& group, std::size_t any_fours) {
  const std::size_t num_fours = kFours > 0 ? kFours : any_fours;
  const auto* weights = reinterpret_cast<const std::int8_t*>(&group + 1);
  __m512i sums[kDigits] = {_mm512_set1_epi32(1 << (kWeightBits - 1)), _mm512_setzero_si512(), _mm512_setzero_si512()};
  const __m512i picks = _mm512_load_si512(kNear ? static_cast<const void*>(group.picks) : group.offsets);
  for (std::size_t i = 0; i < num_fours; ++i, plane += kTaps) {
    const __m512i samples = kNear ? _mm512_permutexvar_epi8(picks, _mm512_loadu_si512(plane + group.first))
                                  : _mm512_i32gather_epi32(picks, plane, 1);
    for (int digit = 0; digit < kDigits; ++digit, weights += kSamples) {
      sums[digit] = _mm512_dpbusd_epi32(sums[digit], samples, _mm512_load_si512(weights));
    }
  }
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(join_digits(sums), _mm512_setzero_si512()));
}

DLIO_AVX512 inline void store_by_turns(const __m128i (&channels)[3], std::size_t count, std::uint8_t* out) {
  alignas(64) static constexpr std::uint8_t kByTurns[64] = {
      0, 16, 32, 1, 17, 33, 2,  18, 34, 3,  19, 35, 4,  20, 36, 5,  21, 37, 6,  22, 38, 7,  23, 39,
      8, 24, 40, 9, 25, 41, 10, 26, 42, 11, 27, 43, 12, 28, 44, 13, 29, 45, 14, 30, 46, 15, 31, 47};
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(channels[0]), channels[1], 1);
  const __m512i all = _mm512_inserti32x4(two, channels[2], 2);
  const __mmask64 wanted = (std::uint64_t{1} << 3 * count) - 1;
  _mm512_mask_storeu_epi8(out, wanted, _mm512_permutexvar_epi8(_mm512_load_si512(kByTurns), all));
}

template <bool kNear, std::size_t kFours>
DLIO_AVX512 void resize_row(const std::uint8_t* row, std::size_t plane_step, const Groups groups,
                            const RowFormat format, std::uint8_t* out) {
  const std::size_t step = group_bytes(groups.num_fours);
  const std::uint8_t* at = groups.at;
  for (std::size_t x = 0; x < format.width; x += kOutputs, at += step) {
    const Group& group = *reinterpret_cast<const Group*>(at);
    __m128i channels[3];
    for (std::size_t c = 0; c < 3; ++c) {
      channels[c] = resize_group<kNear, kFours>(row + c * plane_step, group, groups.num_fours);
    }
    if (!format.is_planar) {
      store_by_turns(channels, std::min<std::size_t>(kOutputs, format.width - x), out + 3 * x);
      continue;
    }
    for (std::size_t c = 0; c < 3; ++c) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * format.run_stride() + x), channels[c]);
    }
  }
}

// Parts pixels of four bytes, sixteen at a time.
DLIO_AVX512 void part_pixels(const std::uint8_t* row, std::size_t num_pixels, std::uint8_t* out, std::size_t step) {
  alignas(64) static constexpr std::uint8_t kByChannel[64] = {
      0,  4,  8,  12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 1,  5,  9,  13, 17, 21, 25, 29,
      33, 37, 41, 45, 49, 53, 57, 61, 2,  6,  10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62};
  const __m512i by_channel = _mm512_load_si512(kByChannel);
  for (std::size_t x = 0; x < num_pixels; x += kOutputs) {
    const std::size_t count = std::min<std::size_t>(kOutputs, num_pixels - x);
    const auto there = static_cast<__mmask16>((1u << count) - 1);
    const __m512i pixels = _mm512_maskz_loadu_epi32(there, row + kPixelBytes * x);
    const __m512i parted = _mm512_permutexvar_epi8(by_channel, pixels);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm512_castsi512_si128(parted));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + step + x), _mm512_extracti32x4_epi32(parted, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * step + x), _mm512_extracti32x4_epi32(parted, 2));
  }
}

}  // namespace

void Avx512Columns::prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format,
                            bool flip) {
  format_ = format;
  input_ = input;
  weights_.compute(filter, part, input, static_cast<std::uint32_t>(format.width));
  if (flip) weights_.reverse();
  num_fours_ = (weights_.largest_count() + kTaps - 1) / kTaps;
  spread_weights();
}

void Avx512Columns::spread_weights() {
  const std::size_t num_groups = (format_.width + kOutputs - 1) / kOutputs, size = group_bytes(num_fours_);
  std::uint8_t* const all = groups_.at_least(num_groups * size);
  std::memset(all, 0, num_groups * size);
  is_near_ = true;
  for (std::uint32_t begin = 0; begin < weights_.size(); begin += kOutputs) {
    Group& group = *reinterpret_cast<Group*>(all + begin / kOutputs * size);
    auto* const fours = reinterpret_cast<Weights64*>(&group + 1);
    const std::uint32_t count = std::min(kOutputs, weights_.size() - begin);
    const std::uint32_t ends[] = {weights_.first(begin), weights_.first(begin + count - 1)};
    group.first = std::min(ends[0], ends[1]);
    is_near_ = is_near_ && std::max(ends[0], ends[1]) - group.first + kTaps <= kReach;
    for (std::uint32_t x = 0; x < count; ++x) {
      const std::uint32_t first = weights_.first(begin + x);
      group.offsets[x] = static_cast<std::int32_t>(first);
      for (std::uint32_t tap = 0; tap < kTaps; ++tap) {
        group.picks[kTaps * x + tap] = static_cast<std::uint8_t>(first - group.first + tap);
      }
      for (std::uint32_t i = 0; i < weights_.count(begin + x); ++i) {
        std::int8_t digits[kDigits];
        split_weight(weights_.of(begin + x)[i], digits);
        for (int digit = 0; digit < kDigits; ++digit) {
          fours[i / kTaps].digits[digit][kTaps * x + i % kTaps] = digits[digit];
        }
      }
    }
  }
}

void Avx512Columns::resize(const std::uint8_t* row, std::size_t plane_step, std::uint8_t* out) {
  if (plane_step == 0) {
    plane_step = input_ + kReach + kOutputs;
    std::uint8_t* const planes = planes_.at_least(3 * plane_step + kReach);
    part_pixels(row, input_, planes, plane_step);
    row = planes;
  }
  const Groups groups{groups_.data(), num_fours_};
  if (!is_near_) {
    resize_row<false, 0>(row, plane_step, groups, format_, out);
  } else if (num_fours_ == 1) {
    resize_row<true, 1>(row, plane_step, groups, format_, out);
  } else if (num_fours_ == 2) {
    resize_row<true, 2>(row, plane_step, groups, format_, out);
  } else {
    resize_row<true, 0>(row, plane_step, groups, format_, out);
  }
}

void Avx512Columns::trim() noexcept {
  weights_.trim();
  groups_.trim();
  planes_.trim();
}

}  // namespace dlio
#endif
