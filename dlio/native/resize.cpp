#include "resize.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"
#include "weights.hpp"

// Two copies of the inner loops, chosen when the module is loaded: AVX2 multiplies 32 bit integers, SSE2 does not.
// Needs glibc's indirect functions, which the sanitizers do not get along with.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(DLIO_SANITIZED)
#define DLIO_FOR_AVX2_TOO __attribute__((target_clones("avx2", "default")))
#else
#define DLIO_FOR_AVX2_TOO
#endif

namespace dlio {
namespace {

constexpr std::uint32_t kChannels = 3;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);
constexpr std::size_t kLane = 32;  // samples of a row that are summed up together

using Bytes4 = std::uint8_t __attribute__((vector_size(4)));
using Sums4 = std::int32_t __attribute__((vector_size(16)));

// Where the samples of a resized row lie: channel c of pixel x at c * channel + x * pixel.
struct RowLayout {
  std::size_t channel;
  std::size_t pixel;
};

DLIO_FOR_AVX2_TOO
void resize_row(const std::uint8_t* row, const Weights& columns, std::uint32_t width, RowLayout layout,
                std::uint8_t* out) {
  for (std::uint32_t x = 0; x < width; ++x) {
    const std::int32_t* weights = columns.of(x);
    const std::uint32_t count = columns.count(x);
    const std::uint8_t* source = row + std::size_t{columns.first(x)} * 4;
    Sums4 sums = {kHalf, kHalf, kHalf, kHalf};
    for (std::uint32_t i = 0; i < count; ++i) {
      Bytes4 pixel;
      std::memcpy(&pixel, source + std::size_t{i} * 4, sizeof pixel);
      sums += __builtin_convertvector(pixel, Sums4) * weights[i];
    }
    sums >>= kWeightBits;
    std::uint8_t* target = out + x * layout.pixel;
    for (std::uint32_t c = 0; c < kChannels; ++c) {
      target[c * layout.channel] = static_cast<std::uint8_t>(std::min(sums[c], 255));
    }
  }
}

// Sums up `count` rows of `size` samples, a multiple of kLane, each with its weight.
DLIO_FOR_AVX2_TOO
void mix_rows(const std::uint8_t* rows, std::size_t size, const std::int32_t* weights, std::uint32_t count,
              std::uint8_t* out) {
  for (std::size_t at = 0; at < size; at += kLane) {
    std::int32_t sums[kLane];
    std::fill_n(sums, kLane, kHalf);
    const std::uint8_t* source = rows + at;
    for (std::uint32_t i = 0; i < count; ++i, source += size) {
      for (std::size_t j = 0; j < kLane; ++j) sums[j] += source[j] * weights[i];
    }
    for (std::size_t j = 0; j < kLane; ++j) {
      out[at + j] = static_cast<std::uint8_t>(std::min(sums[j] >> kWeightBits, 255));
    }
  }
}

void place_row(const std::uint8_t* samples, std::uint32_t y, const Target& target) {
  const std::size_t width = target.width;
  if (target.layout == Layout::height_width_channels) {
    std::memcpy(target.data + y * width * kChannels, samples, width * kChannels);
    return;
  }
  const std::size_t plane = width * target.height;
  for (std::size_t c = 0; c < kChannels; ++c) {
    std::memcpy(target.data + c * plane + y * width, samples + c * width, width);
  }
}

struct Workspace {
  Weights columns;
  Weights rows;
  Scratch resized_rows;

  static Workspace& of_this_thread() {
    thread_local Workspace workspace;
    return workspace;
  }
};

}  // namespace

void resize(const Pixels& pixels, bool flip, const Target& target) {
  Workspace& work = Workspace::of_this_thread();
  work.columns.compute(pixels.width, target.width);
  if (flip) work.columns.reverse();
  work.rows.compute(pixels.height, target.height);

  const bool interleaved = target.layout == Layout::height_width_channels;
  const RowLayout layout = interleaved ? RowLayout{1, kChannels} : RowLayout{target.width, 1};
  const std::size_t size = (std::size_t{target.width} * kChannels + kLane - 1) / kLane * kLane;
  std::uint8_t* const resized = work.resized_rows.at_least(size * (std::size_t{pixels.height} + 1));
  for (std::uint32_t y = 0; y < pixels.height; ++y) {
    resize_row(pixels.data + y * pixels.stride, work.columns, target.width, layout, resized + y * size);
  }
  std::uint8_t* const mixed = resized + pixels.height * size;
  for (std::uint32_t y = 0; y < target.height; ++y) {
    mix_rows(resized + work.rows.first(y) * size, size, work.rows.of(y), work.rows.count(y), mixed);
    place_row(mixed, y, target);
  }
  work.resized_rows.trim();
}

}  // namespace dlio
