#include "augment/tones.hpp"

#include <algorithm>
#include <array>

#include "blend.hpp"
#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::size_t kLevels = 256;

using Table = std::array<std::uint8_t, kLevels>;
using Histogram = std::array<std::size_t, kLevels>;

Table unchanged() noexcept {
  Table table{};
  for (std::size_t level = 0; level < kLevels; ++level) table[level] = static_cast<std::uint8_t>(level);
  return table;
}

void look_up(const Table& table, const Picture& picture) noexcept {
  for (std::size_t i = 0; i < picture.num_bytes(); ++i) picture.data[i] = table[picture.data[i]];
}

// Changes each channel by the table that `table_of` makes of its histogram.
template <class TableOf>
void look_up_each(const Picture& picture, TableOf table_of) noexcept {
  const std::size_t step = picture.pixel_step(), count = picture.num_pixels();
  for (std::size_t channel = 0; channel < 3; ++channel) {
    std::uint8_t* const values = picture.data + channel * picture.channel_step();
    Histogram counts{};
    for (std::size_t i = 0; i < count; ++i) ++counts[values[i * step]];
    const Table table = table_of(counts);
    for (std::size_t i = 0; i < count; ++i) values[i * step] = table[values[i * step]];
  }
}

Table stretched(const Histogram& counts) noexcept {
  Table table = unchanged();
  const auto is_used = [](std::size_t count) { return count > 0; };
  const auto low = std::find_if(counts.begin(), counts.end(), is_used) - counts.begin();
  const auto beyond = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), is_used);
  if (beyond - 1 <= low) return table;
  const double scale = 255.0 / static_cast<double>(beyond - 1 - low);
  const double offset = static_cast<double>(-low) * scale;
  for (std::size_t level = 0; level < kLevels; ++level) {
    const double product = static_cast<double>(level) * scale;  // rounded: see -ffp-contract in CMakeLists.txt
    table[level] = static_cast<std::uint8_t>(std::min(std::max(product + offset, 0.0), 255.0));
  }
  return table;
}

Table evened_out(const Histogram& counts) noexcept {
  Table table = unchanged();
  std::size_t total = 0, last = 0, num_used = 0;
  for (const std::size_t count : counts) {
    total += count;
    num_used += count > 0 ? 1 : 0;
    if (count > 0) last = count;
  }
  const std::size_t step = (total - last) / 255;
  if (num_used < 2 || step == 0) return table;
  std::size_t before = step / 2;
  for (std::size_t level = 0; level < kLevels; ++level) {
    table[level] = static_cast<std::uint8_t>(std::min<std::size_t>(before / step, 255));
    before += counts[level];
  }
  return table;
}

// Three rows of an image as it was.
struct Lines {
  const std::uint8_t* above;
  const std::uint8_t* at;
  const std::uint8_t* below;
};

// Blends `size` values with the means of their neighbours, `step` bytes away. The weights are those of Pillow's SMOOTH:
// 5 for the value, 1 for each neighbour. A sum is never half way between two means, so that integers round as floats.
DLIO_FOR_AVX2_TOO
void sharpen_row(const Lines& lines, std::size_t step, std::size_t size, float factor, std::uint8_t* out) noexcept {
  const std::uint8_t* const above = lines.above;
  const std::uint8_t* const at = lines.at;
  const std::uint8_t* const below = lines.below;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint8_t *const a = above + i, *const b = at + i, *const c = below + i;
    const unsigned around = 0u + a[0] + a[step] + a[2 * step] + b[0] + b[2 * step] + c[0] + c[step] + c[2 * step];
    const unsigned mean = (2 * (around + 5u * b[step]) + 13u) / 26u;
    out[i + step] = blend(static_cast<int>(mean), b[step], factor);
  }
}

}  // namespace

void posterize(const Picture& picture, int bits) noexcept {
  const auto mask = static_cast<std::uint8_t>(0xFF00 >> bits);
  for (std::size_t i = 0; i < picture.num_bytes(); ++i) picture.data[i] = picture.data[i] & mask;
}

void solarize(const Picture& picture, double threshold) noexcept {
  Table table{};
  for (std::size_t level = 0; level < kLevels; ++level) {
    table[level] = static_cast<std::uint8_t>(static_cast<double>(level) < threshold ? level : 255 - level);
  }
  look_up(table, picture);
}

void autocontrast(const Picture& picture) noexcept { look_up_each(picture, stretched); }

void equalize(const Picture& picture) noexcept { look_up_each(picture, evened_out); }

void sharpen(const Picture& picture, float factor, AugmentMemory& memory) {
  if (factor == 1 || picture.height < 3 || picture.width < 3) return;
  factor = std::min(std::max(factor, -kLargestFactor), kLargestFactor);
  const std::size_t step = picture.pixel_step(), row_bytes = picture.width * step;
  const std::uint8_t* const source = copied(picture, memory);
  for (std::size_t plane = 0; plane < (picture.is_planar ? 3 : 1); ++plane) {
    const std::size_t first = plane * picture.num_pixels();
    for (std::size_t y = 1; y + 1 < picture.height; ++y) {
      const std::uint8_t* const at = source + first + y * row_bytes;
      const Lines lines{at - row_bytes, at, at + row_bytes};
      sharpen_row(lines, step, row_bytes - 2 * step, factor, picture.data + first + y * row_bytes);
    }
  }
}

}  // namespace dlio
