// Resizing rows of pixels in their length.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"
#include "weights.hpp"

namespace dlio {

constexpr std::size_t kPixelBytes = 4;  // red, green, blue, and one to ignore

class ColumnResizer {
 public:
  // Prepares to resize a part of rows of `input` pixels to `output`, mirrored where `flip`. Throws std::bad_alloc.
  void prepare(const Stretch& part, std::uint32_t input, std::uint32_t output, bool flip);
  void resize(const std::uint8_t* row, std::uint8_t* out);
  void trim() noexcept;

 private:
  void spread_weights();

  Weights weights_;
  Scratch spread_;   // of every output pixel its weights, one for each sample, in pairs of pixels
  Scratch numbers_;  // a row of samples, and the sums of an output row, as 32 bit numbers
  std::uint32_t input_ = 0;
  std::uint32_t num_pairs_ = 0;  // of input pixels to an output pixel; those too many have weight 0
};

}  // namespace dlio
