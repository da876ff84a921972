#include "resize/planes.hpp"

#include <array>

#include "dispatch.hpp"

#if defined(DLIO_HAS_AVX2)
#include <immintrin.h>
#endif

namespace dlio {
namespace {

void part_pixels(const std::uint8_t* pixels, std::size_t num_pixels, bool flip, const PlaneRows& out) noexcept {
  const std::size_t last = num_pixels - 1;
  for (std::size_t x = 0; x < num_pixels; ++x, pixels += 3) {
    const std::size_t to = flip ? last - x : x;
    out.red[to] = pixels[0];
    out.green[to] = pixels[1];
    out.blue[to] = pixels[2];
  }
}

#if defined(DLIO_HAS_AVX2)
constexpr std::size_t kRun = 16;  // pixels in three vectors

// For each channel and vector of a run, which of its bytes go where; others are -1, which makes a zero.
struct Choices {
  alignas(kRun) std::array<std::array<std::array<std::int8_t, kRun>, 3>, 3> bytes{};

  constexpr explicit Choices(bool flip) noexcept {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t vector = 0; vector < 3; ++vector) {
        for (std::size_t x = 0; x < kRun; ++x) {
          const std::size_t from = 3 * (flip ? kRun - 1 - x : x) + channel;
          bytes[channel][vector][x] = static_cast<std::int8_t>(from / kRun == vector ? from % kRun : -1);
        }
      }
    }
  }
};

constexpr Choices kForward(false), kMirrored(true);

DLIO_AVX2 inline __m128i chosen(__m128i vector, const std::array<std::int8_t, kRun>& choice) noexcept {
  return _mm_shuffle_epi8(vector, _mm_load_si128(reinterpret_cast<const __m128i*>(choice.data())));
}

DLIO_AVX2 void part_run(const std::uint8_t* pixels, const Choices& choices, const PlaneRows& out,
                        std::size_t at) noexcept {
  const auto* const from = reinterpret_cast<const __m128i*>(pixels);
  const __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1), third = _mm_loadu_si128(from + 2);
  const std::array<std::uint8_t*, 3> rows{out.red, out.green, out.blue};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto& choice = choices.bytes[channel];
    const __m128i both = _mm_or_si128(chosen(first, choice[0]), chosen(second, choice[1]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rows[channel] + at), _mm_or_si128(both, chosen(third, choice[2])));
  }
}

// The last run begins so that it ends with the row.
DLIO_AVX2 void part_runs(const std::uint8_t* pixels, std::size_t num_pixels, bool flip, const PlaneRows& out) noexcept {
  const Choices& choices = flip ? kMirrored : kForward;
  const std::size_t last = num_pixels - kRun;
  for (std::size_t next = 0; next < num_pixels; next += kRun) {
    const std::size_t at = next < last ? next : last;
    part_run(pixels + 3 * at, choices, out, flip ? last - at : at);
  }
}

#endif

}  // namespace

void part_row(const std::uint8_t* pixels, std::size_t num_pixels, bool flip, const PlaneRows& out) noexcept {
#if defined(DLIO_HAS_AVX2)
  if (num_pixels >= kRun && __builtin_cpu_supports("avx2") != 0) return part_runs(pixels, num_pixels, flip, out);
#endif
  part_pixels(pixels, num_pixels, flip, out);
}

}  // namespace dlio
