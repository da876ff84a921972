#include "augment/mix.hpp"

#include <cmath>
#include <cstring>

#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kWhole = 1U << 16;  // a share of 1

DLIO_FOR_AVX2_TOO
void mean_of(const std::uint8_t* other, std::uint32_t weight, std::size_t size, std::uint8_t* values) noexcept {
  const std::uint32_t rest = kWhole - weight;
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<std::uint8_t>((values[i] * weight + other[i] * rest + kWhole / 2) / kWhole);
  }
}

void copy_box(const std::uint8_t* other, const Mixed& mixed, const Picture& picture) noexcept {
  const std::size_t step = picture.pixel_step();
  for (std::size_t plane = 0; plane < (picture.is_planar ? 3 : 1); ++plane) {
    for (std::size_t y = mixed.top; y < mixed.bottom; ++y) {
      const std::size_t at = (plane * picture.num_pixels() + y * picture.width + mixed.left) * step;
      std::memcpy(picture.data + at, other + at, (mixed.right - mixed.left) * step);
    }
  }
}

}  // namespace

void mix(const Picture& first, std::size_t count, const Mixed* mixed, AugmentMemory& memory) {
  if (count < 2) return;
  const std::size_t image_bytes = first.num_bytes();
  Picture picture = first;
  picture.data += (count - 1) * image_bytes;
  const std::uint8_t* const last = copied(picture, memory);
  for (std::size_t i = count; i-- > 0; picture.data -= i > 0 ? image_bytes : 0) {
    const std::uint8_t* const other = i > 0 ? picture.data - image_bytes : last;
    if (mixed[i].has_box()) {
      copy_box(other, mixed[i], picture);
    } else {
      mean_of(other, static_cast<std::uint32_t>(std::lround(mixed[i].share * kWhole)), image_bytes, picture.data);
    }
  }
}

}  // namespace dlio
