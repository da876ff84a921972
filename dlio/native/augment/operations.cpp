#include "augment/operations.hpp"

#include <algorithm>
#include <cmath>

#include "augment/affine.hpp"
#include "augment/tones.hpp"
#include "colors.hpp"

namespace dlio {
namespace {

constexpr double kLargest = 1e9;

Affine map_of(const Numbers& numbers) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(numbers[i]); };
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], {byte(6), byte(7), byte(8)}};
}

void adjust_colors(const Picture& picture, Operation operation, double factor) noexcept {
  const ColorPixels pixels{picture.data, picture.num_pixels(), picture.pixel_step(), picture.channel_step()};
  adjust(pixels, static_cast<ColorStep>(operation), static_cast<float>(factor));
}

}  // namespace

bool is_possible(std::uint8_t operation, const Numbers& numbers) noexcept {
  const auto is_finite = [](double number) { return std::fabs(number) <= kLargest; };  // false of no number
  const auto is_byte = [](double number) { return number >= 0 && number <= 255; };
  if (operation > static_cast<std::uint8_t>(Operation::none)) return false;
  if (!std::all_of(numbers.begin(), numbers.end(), is_finite)) return false;
  switch (static_cast<Operation>(operation)) {
    case Operation::posterize:
      return numbers[0] >= 0 && numbers[0] <= 8;
    case Operation::nearest:
    case Operation::bilinear:
      return std::all_of(numbers.begin() + 6, numbers.end(), is_byte);
    default:
      return true;
  }
}

void change(const Picture& picture, Operation operation, const Numbers& numbers, AugmentMemory& memory) {
  switch (operation) {
    case Operation::brightness:
    case Operation::contrast:
    case Operation::saturation:
      return adjust_colors(picture, operation, numbers[0]);
    case Operation::sharpness:
      return sharpen(picture, static_cast<float>(numbers[0]), memory);
    case Operation::posterize:
      return posterize(picture, static_cast<int>(numbers[0]));
    case Operation::solarize:
      return solarize(picture, numbers[0]);
    case Operation::autocontrast:
      return autocontrast(picture);
    case Operation::equalize:
      return equalize(picture);
    case Operation::nearest:
      return move_nearest(picture, map_of(numbers), memory);
    case Operation::bilinear:
      return move_bilinear(picture, map_of(numbers), memory);
    case Operation::none:
      return;
  }
}

}  // namespace dlio
