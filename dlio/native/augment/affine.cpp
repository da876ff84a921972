#include "augment/affine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dlio {
namespace {

constexpr double kOne = 65536;           // of fixed point numbers
constexpr int kFixedBits = 16;           // behind their point
constexpr double kFixedLimit = 32768.0;  // what they reach to
constexpr std::int32_t kOutside = -1;    // instead of a pixel's number

// Returns a coordinate as the number of a pixel, kOutside where there is none.
std::int32_t pixel_at(double coordinate, std::size_t size) noexcept {
  return coordinate >= 0 && coordinate < static_cast<double>(size) ? static_cast<std::int32_t>(coordinate) : kOutside;
}

// Returns a fixed point number. It wraps around where it is out of range, for which the results are not used.
std::uint32_t fixed(double number) noexcept {
  return static_cast<std::uint32_t>(static_cast<std::int64_t>(std::floor(number * kOne + 0.5)));
}

bool is_fixed(const Affine& map, double x, double y) noexcept {
  return std::fabs(x * map.a + y * map.b + map.c) < kFixedLimit &&
         std::fabs(x * map.d + y * map.e + map.f) < kFixedLimit;
}

bool is_fixed(const Affine& map, const Picture& picture) noexcept {
  const auto width = static_cast<double>(picture.width), height = static_cast<double>(picture.height);
  return is_fixed(map, 0, 0) && is_fixed(map, width, height) && is_fixed(map, 0, height) && is_fixed(map, width, 0);
}

// Sets a row of the result to the pixels of the source with the given numbers.
void gather(const Picture& picture, const std::uint8_t* source, const std::int32_t* places, const Affine& map,
            std::size_t y) noexcept {
  const std::size_t step = picture.pixel_step();
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const std::size_t first = channel * picture.channel_step();
    std::uint8_t* const out = picture.data + first + y * picture.width * step;
    const std::uint8_t* const from = source + first;
    const std::uint8_t fill = map.fill[channel];
    for (std::size_t x = 0; x < picture.width; ++x) {
      out[x * step] = places[x] < 0 ? fill : from[static_cast<std::size_t>(places[x]) * step];
    }
  }
}

// Pillow has three ways to find the nearest pixels, which round differently. Each calls `row(y)` for each row, which
// sets `places`.

// Maps that move, flip or scale: columns and rows apart, in steps of doubles.
template <class Row>
void visit_scaled(const Picture& picture, const Affine& map, std::int32_t* places, std::int32_t* columns, Row row) {
  double at = map.c + map.a * 0.5;
  for (std::size_t x = 0; x < picture.width; ++x, at += map.a) columns[x] = pixel_at(at, picture.width);
  at = map.f + map.e * 0.5;
  for (std::size_t y = 0; y < picture.height; ++y, at += map.e) {
    const std::int32_t from = pixel_at(at, picture.height);
    const auto first = from * static_cast<std::int32_t>(picture.width);
    for (std::size_t x = 0; x < picture.width; ++x) {
      places[x] = from < 0 || columns[x] < 0 ? kOutside : first + columns[x];
    }
    row(y);
  }
}

// Any others, in steps of fixed point numbers.
template <class Row>
void visit_fixed(const Picture& picture, const Affine& map, std::int32_t* places, Row row) {
  const auto width = static_cast<std::uint32_t>(picture.width), height = static_cast<std::uint32_t>(picture.height);
  const std::uint32_t a = fixed(map.a), b = fixed(map.b), d = fixed(map.d), e = fixed(map.e);
  std::uint32_t first_x = fixed(map.c + map.a * 0.5 + map.b * 0.5);
  std::uint32_t first_y = fixed(map.f + map.d * 0.5 + map.e * 0.5);
  for (std::size_t y = 0; y < picture.height; ++y, first_x += b, first_y += e) {
    std::uint32_t at_x = first_x, at_y = first_y;
    for (std::size_t x = 0; x < picture.width; ++x, at_x += a, at_y += d) {
      const auto column = static_cast<std::uint32_t>(static_cast<std::int32_t>(at_x) >> kFixedBits);
      const auto line = static_cast<std::uint32_t>(static_cast<std::int32_t>(at_y) >> kFixedBits);
      const bool is_inside = column < width && line < height;  // a negative number is a large one
      places[x] = is_inside ? static_cast<std::int32_t>(line * width + column) : kOutside;
    }
    row(y);
  }
}

// Any others that fixed point numbers do not reach.
template <class Row>
void visit_far(const Picture& picture, const Affine& map, std::int32_t* places, Row row) {
  double first_x = map.c + map.b * 0.5 + map.a * 0.5, first_y = map.f + map.e * 0.5 + map.d * 0.5;
  for (std::size_t y = 0; y < picture.height; ++y, first_x += map.b, first_y += map.e) {
    double at_x = first_x, at_y = first_y;
    for (std::size_t x = 0; x < picture.width; ++x, at_x += map.a, at_y += map.d) {
      const std::int32_t column = pixel_at(at_x, picture.width), line = pixel_at(at_y, picture.height);
      const bool is_inside = column >= 0 && line >= 0;
      places[x] = is_inside ? line * static_cast<std::int32_t>(picture.width) + column : kOutside;
    }
    row(y);
  }
}

// Four neighbours of a point, and how near it is to the right and lower ones.
struct Corners {
  std::size_t upper_left, upper_right, lower_left, lower_right;  // bytes
  double right, down;

  // `x`, `y`: the point, less half a pixel; its corners that lie outside of the image are those next to them.
  Corners(const Picture& picture, double x, double y) noexcept : right(0), down(0) {
    const double column = std::floor(x), line = std::floor(y);
    right = x - column;
    down = y - line;
    const auto clamped = [](double at, std::size_t size) {
      return static_cast<std::size_t>(std::min(std::max(at, 0.0), static_cast<double>(size - 1)));
    };
    const std::size_t step = picture.pixel_step();
    const std::size_t left = clamped(column, picture.width) * step, next = clamped(column + 1, picture.width) * step;
    const std::size_t upper = clamped(line, picture.height) * picture.width * step;
    const std::size_t lower = clamped(line + 1, picture.height) * picture.width * step;
    upper_left = upper + left;
    upper_right = upper + next;
    lower_left = lower + left;
    lower_right = lower + next;
  }

  std::uint8_t mixed(const std::uint8_t* from) const noexcept {
    const double above = from[upper_left] + (from[upper_right] - from[upper_left]) * right;
    const double below = from[lower_left] + (from[lower_right] - from[lower_left]) * right;
    return static_cast<std::uint8_t>(above + (below - above) * down);
  }
};

}  // namespace

const std::uint8_t* copied(const Picture& picture, AugmentMemory& memory) {
  std::uint8_t* const source = memory.source.at_least(picture.num_bytes());
  std::memcpy(source, picture.data, picture.num_bytes());
  return source;
}

void move_nearest(const Picture& picture, const Affine& map, AugmentMemory& memory) {
  const std::uint8_t* const source = copied(picture, memory);
  auto* const places =
      reinterpret_cast<std::int32_t*>(memory.places.at_least(picture.width * 2 * sizeof(std::int32_t)));
  const auto row = [&](std::size_t y) { gather(picture, source, places, map, y); };
  if (map.b == 0 && map.d == 0) {
    visit_scaled(picture, map, places, places + picture.width, row);
  } else if (is_fixed(map, picture)) {
    visit_fixed(picture, map, places, row);
  } else {
    visit_far(picture, map, places, row);
  }
}

void move_bilinear(const Picture& picture, const Affine& map, AugmentMemory& memory) {
  const std::uint8_t* const source = copied(picture, memory);
  const auto width = static_cast<double>(picture.width), height = static_cast<double>(picture.height);
  const std::size_t channel_step = picture.channel_step();
  std::uint8_t* out = picture.data;
  for (std::size_t y = 0; y < picture.height; ++y) {
    const double line = static_cast<double>(y) + 0.5;
    for (std::size_t x = 0; x < picture.width; ++x, out += picture.pixel_step()) {
      const double column = static_cast<double>(x) + 0.5;
      const double from_x = map.a * column + map.b * line + map.c, from_y = map.d * column + map.e * line + map.f;
      if (!(from_x >= 0 && from_x < width && from_y >= 0 && from_y < height)) {
        for (std::size_t c = 0; c < 3; ++c) out[c * channel_step] = map.fill[c];
        continue;
      }
      const Corners corners(picture, from_x - 0.5, from_y - 0.5);
      for (std::size_t c = 0; c < 3; ++c) out[c * channel_step] = corners.mixed(source + c * channel_step);
    }
  }
}

}  // namespace dlio
