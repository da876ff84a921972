#include "resize/weights.hpp"

#include <algorithm>
#include <cmath>

#include "memory.hpp"

namespace dlio {
namespace {

double triangle(double distance) noexcept { return distance < 1 ? 1 - distance : 0; }

// Keys' cubic with a = -0.5, as Pillow's.
double cubic(double distance) noexcept {
  constexpr double kSlope = -0.5;
  if (distance < 1) return ((kSlope + 2.0) * distance - (kSlope + 3.0)) * distance * distance + 1;
  return distance < 2 ? (((distance - 5) * distance + 8) * distance - 4) * kSlope : 0;
}

}  // namespace

void Weights::compute(Filter filter, const Stretch& part, std::uint32_t input, std::uint32_t output) {
  if (filter == Filter::nearest) return take_nearest(part, input, output);
  const double scale = part.size / output, stretch = std::max(scale, 1.0);
  const double support = (filter == Filter::bicubic ? 2 : 1) * stretch;
  spans_.clear();
  weights_.clear();
  largest_count_ = 0;
  for (std::uint32_t i = 0; i < output; ++i) {
    const double center = part.begin + (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), static_cast<int>(input));
    shape_.clear();
    double sum = 0;
    for (int x = first; x < end; ++x) {
      const double distance = std::fabs((x - center + 0.5) * (1.0 / stretch));
      shape_.push_back(filter == Filter::bicubic ? cubic(distance) : triangle(distance));
      sum += shape_.back();
    }
    spans_.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first),
                      static_cast<std::uint32_t>(weights_.size())});
    largest_count_ = std::max(largest_count_, spans_.back().count);
    for (const double weight : shape_) {
      const double scaled = weight / sum * (1 << kWeightBits);
      weights_.push_back(static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
    }
  }
}

void Weights::take_nearest(const Stretch& part, std::uint32_t input, std::uint32_t output) {
  spans_.clear();
  weights_.assign(1, 1 << kWeightBits);
  largest_count_ = 1;
  const double scale = part.size / output;
  double at = part.begin + scale * 0.5;
  for (std::uint32_t i = 0; i < output; ++i, at += scale) {
    spans_.push_back({std::min(static_cast<std::uint32_t>(at), input - 1), 1, 0});
  }
}

void Weights::reverse() { std::reverse(spans_.begin(), spans_.end()); }

void Weights::trim() noexcept {
  trim_kept(spans_);
  trim_kept(weights_);
  trim_kept(shape_);
}

}  // namespace dlio
