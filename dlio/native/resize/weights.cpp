#include "resize/weights.hpp"

#include <algorithm>
#include <cmath>

#include "memory.hpp"

namespace dlio {

void Weights::compute(const Stretch& part, std::uint32_t input, std::uint32_t output) {
  const double scale = part.size / output;
  const double support = std::max(scale, 1.0);
  spans_.clear();
  weights_.clear();
  largest_count_ = 0;
  for (std::uint32_t i = 0; i < output; ++i) {
    const double center = part.begin + (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), static_cast<int>(input));
    triangle_.clear();
    double sum = 0;
    for (int x = first; x < end; ++x) {
      const double distance = std::fabs((x - center + 0.5) * (1.0 / support));
      triangle_.push_back(distance < 1 ? 1 - distance : 0);
      sum += triangle_.back();
    }
    spans_.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first),
                      static_cast<std::uint32_t>(weights_.size())});
    largest_count_ = std::max(largest_count_, spans_.back().count);
    for (const double weight : triangle_) {
      weights_.push_back(static_cast<std::int32_t>(weight / sum * (1 << kWeightBits) + 0.5));
    }
  }
}

void Weights::reverse() { std::reverse(spans_.begin(), spans_.end()); }

void Weights::trim() noexcept {
  trim_kept(spans_);
  trim_kept(weights_);
  trim_kept(triangle_);
}

}  // namespace dlio
