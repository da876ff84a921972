// Weights of a filter in one direction.
#pragma once

#include <cstdint>
#include <vector>

namespace dlio {

constexpr int kWeightBits = 22;  // 8 bit samples times weights that add up to 1 << 22 stay within 31 bits

// How values between samples are found; the numbers are part of the Python interface.
enum class Filter : std::uint8_t { bilinear = 0, bicubic = 1, nearest = 2 };

// Samples [begin, begin + size); an end that is no whole number lies within a sample.
struct Stretch {
  double begin;
  double size;
};

// For each output position the input positions it is made of.
class Weights {
 public:
  // Computes Pillow's weights (its Resample.c, or of the nearest its Geometry.c) for `part` of `input` samples made
  // into `output` ones; none is empty. Samples next to the part count as far as the filter reaches.
  void compute(Filter filter, const Stretch& part, std::uint32_t input, std::uint32_t output);
  void reverse();
  void trim() noexcept;

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(spans_.size()); }
  std::uint32_t largest_count() const noexcept { return largest_count_; }
  std::uint32_t first(std::uint32_t i) const noexcept { return spans_[i].first; }
  std::uint32_t count(std::uint32_t i) const noexcept { return spans_[i].count; }
  const std::int32_t* of(std::uint32_t i) const noexcept { return weights_.data() + spans_[i].offset; }

 private:
  void take_nearest(const Stretch& part, std::uint32_t input, std::uint32_t output);

  struct Span {
    std::uint32_t first;
    std::uint32_t count;
    std::uint32_t offset;  // of its weights
  };
  std::vector<Span> spans_;
  std::vector<std::int32_t> weights_;
  std::vector<double> shape_;
  std::uint32_t largest_count_ = 0;
};

}  // namespace dlio
