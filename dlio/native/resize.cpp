#include "resize.hpp"

#include <algorithm>
#include <cstring>

#include "columns.hpp"
#include "dispatch.hpp"
#include "memory.hpp"

namespace dlio {
namespace {

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);
constexpr std::size_t kLane = 32;  // samples of a run that are summed up together

// Sums up `size` samples of `count` rows, each row with its weight. Reads whole lanes.
DLIO_FOR_AVX2_TOO
void mix_rows(const std::uint8_t* rows, std::size_t stride, const std::int32_t* weights, std::uint32_t count,
              std::size_t size, std::uint8_t* out) {
  for (std::size_t at = 0; at < size; at += kLane) {
    std::int32_t sums[kLane];
    std::fill_n(sums, kLane, kHalf);
    const std::uint8_t* source = rows + at;
    for (std::uint32_t i = 0; i < count; ++i, source += stride) {
      for (std::size_t j = 0; j < kLane; ++j) sums[j] += source[j] * weights[i];
    }
    std::uint8_t mixed[kLane];
    for (std::size_t j = 0; j < kLane; ++j) {
      mixed[j] = static_cast<std::uint8_t>(std::min(sums[j] >> kWeightBits, 255));
    }
    if (size - at >= kLane) {
      std::memcpy(out + at, mixed, kLane);
    } else {
      std::memcpy(out + at, mixed, size - at);
    }
  }
}

template <class Columns>
struct Workspace {
  Columns columns;
  Weights rows;
  Scratch resized;  // the rows of the input at the width of the output

  void trim() noexcept {
    columns.trim();
    rows.trim();
    resized.trim();
  }
};

template <class Columns>
void resize_with(const Pixels& pixels, const Part& part, bool flip, const Target& target) {
  Kept<Workspace<Columns>> work;
  const RowFormat format{target.width, target.layout == Layout::channels_height_width};
  work->columns.prepare(part.columns, pixels.width, format, flip);
  work->rows.compute(part.rows, pixels.height, target.height);

  std::uint8_t* const resized = work->resized.at_least(format.stride() * pixels.height);
  for (std::size_t y = 0; y < pixels.height; ++y) {
    work->columns.resize(pixels.data + y * pixels.stride, resized + y * format.stride());
  }
  for (std::uint32_t y = 0; y < target.height; ++y) {
    const std::uint8_t* const rows = resized + work->rows.first(y) * format.stride();
    for (std::size_t run = 0; run < format.num_runs(); ++run) {
      mix_rows(rows + run * format.run_stride(), format.stride(), work->rows.of(y), work->rows.count(y),
               format.run_bytes(), target.data + (run * target.height + y) * format.run_bytes());
    }
  }
}

}  // namespace

void resize(const Pixels& pixels, const Part& part, bool flip, const Target& target) {
#ifdef DLIO_HAS_AVX2_COLUMNS
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return resize_with<Avx2Columns>(pixels, part, flip, target);
#endif
  resize_on_any_processor(pixels, part, flip, target);
}

void resize_on_any_processor(const Pixels& pixels, const Part& part, bool flip, const Target& target) {
  resize_with<PlainColumns>(pixels, part, flip, target);
}

}  // namespace dlio
