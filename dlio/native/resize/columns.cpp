#include "resize/columns.hpp"

#include <algorithm>
#include <cstring>

#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

// Two pixels side by side, and one, as numbers.
constexpr std::size_t kPair = 2 * kPixelBytes;
using Pair = std::int32_t __attribute__((vector_size(kPair * sizeof(std::int32_t))));
using Pixel = std::int32_t __attribute__((vector_size(kPixelBytes * sizeof(std::int32_t))));

// Bytes are turned to numbers and back by the row: compilers do that well, and badly for a single pixel.
DLIO_FOR_AVX2_TOO
void widen(const std::uint8_t* samples, std::size_t num_samples, std::int32_t* numbers) {
  for (std::size_t i = 0; i < num_samples; ++i) numbers[i] = samples[i];
}

DLIO_FOR_AVX2_TOO
void narrow(const std::int32_t* sums, std::size_t num_samples, std::uint8_t* samples) {
  for (std::size_t i = 0; i < num_samples; ++i) {
    samples[i] = static_cast<std::uint8_t>(std::min(std::max((sums[i] + kHalf) >> kWeightBits, 0), 255));
  }
}

// Writes to `sums` the weighted sums that make up each output pixel of one row.
DLIO_FOR_AVX2_TOO
void sum_up(const std::int32_t* row, const Weights& columns, const std::int32_t* weights, std::uint32_t num_pairs,
            std::int32_t* sums) {
  const std::uint32_t width = columns.size();
  for (std::uint32_t x = 0; x < width; ++x) {
    const std::int32_t* at = row + columns.first(x) * kPixelBytes;
    Pair sum = {}, pair, weight;
    for (std::uint32_t i = 0; i < num_pairs; ++i, at += kPair, weights += kPair) {
      std::memcpy(&pair, at, sizeof pair);
      std::memcpy(&weight, weights, sizeof weight);
      sum += pair * weight;
    }
    Pixel halves[2];
    std::memcpy(halves, &sum, sizeof sum);
    const Pixel pixel = halves[0] + halves[1];
    std::memcpy(sums + x * kPixelBytes, &pixel, sizeof pixel);
  }
}

DLIO_FOR_AVX2_TOO
void place(const std::uint8_t* pixels, const RowFormat& format, std::uint8_t* out) {
  for (std::size_t c = 0; c < 3; ++c) {
    std::uint8_t* const at = format.is_planar ? out + c * format.run_stride() : out + c;
    const std::size_t step = format.is_planar ? 1 : 3;
    for (std::size_t x = 0; x < format.width; ++x) at[x * step] = pixels[x * kPixelBytes + c];
  }
}

}  // namespace

void PlainColumns::prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format,
                           bool flip) {
  format_ = format;
  weights_.compute(filter, part, input, static_cast<std::uint32_t>(format.width));
  if (flip) weights_.reverse();
  input_ = input;
  spread_weights();
}

void PlainColumns::spread_weights() {
  num_pairs_ = (weights_.largest_count() + 1) / 2;
  const std::size_t num_samples = std::size_t{weights_.size()} * num_pairs_ * kPair;
  auto* at = reinterpret_cast<std::int32_t*>(spread_.at_least(num_samples * sizeof(std::int32_t)));
  std::fill_n(at, num_samples, 0);
  for (std::uint32_t x = 0; x < weights_.size(); ++x, at += num_pairs_ * kPair) {
    for (std::uint32_t i = 0; i < weights_.count(x); ++i) {
      std::fill_n(at + i * kPixelBytes, kPixelBytes, weights_.of(x)[i]);
    }
  }
}

void PlainColumns::resize(const std::uint8_t* row, std::uint8_t* out) {
  // The pairs of a pixel at the right edge may reach behind the row, with a weight of 0.
  const std::size_t num_samples = input_ * kPixelBytes;
  const std::size_t num_sums = weights_.size() * kPixelBytes;
  const std::size_t num_numbers = num_samples + num_pairs_ * kPair + num_sums;
  auto* numbers = reinterpret_cast<std::int32_t*>(numbers_.at_least(num_numbers * sizeof(std::int32_t)));
  std::int32_t* const sums = numbers + num_numbers - num_sums;
  widen(row, num_samples, numbers);
  sum_up(numbers, weights_, reinterpret_cast<const std::int32_t*>(spread_.data()), num_pairs_, sums);
  std::uint8_t* const pixels = pixels_.at_least(num_sums);
  narrow(sums, num_sums, pixels);
  place(pixels, format_, out);
}

void PlainColumns::trim() noexcept {
  weights_.trim();
  spread_.trim();
  numbers_.trim();
  pixels_.trim();
}

}  // namespace dlio
