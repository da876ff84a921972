// Resizing rows of pixels in their length.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.hpp"
#include "memory.hpp"
#include "resize/weights.hpp"

namespace dlio {

constexpr std::size_t kPixelBytes = 4;  // red, green, blue, and one to ignore

// Resized rows are written eight pixels at a time: a few bytes more than there are.
constexpr std::size_t kPixelsAtOnce = 8;

// A resized row: one run of all channels, pixel by pixel, or three runs of a channel each.
struct RowFormat {
  std::size_t width;  // pixels
  bool is_planar;

  std::size_t num_runs() const noexcept { return is_planar ? 3 : 1; }
  std::size_t run_bytes() const noexcept { return is_planar ? width : 3 * width; }
  // From run to run: with room for what is written too much, and a multiple of what mix_rows reads at a time.
  std::size_t run_stride() const noexcept { return (run_bytes() + kPixelBytes * kPixelsAtOnce + 63) / 64 * 64; }
  std::size_t stride() const noexcept { return num_runs() * run_stride(); }
};

// Resizes rows on any processor.
class PlainColumns {
 public:
  // Prepares to resize a part of rows of `input` pixels to those of `format`, mirrored where `flip`. Throws
  // std::bad_alloc.
  void prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format, bool flip);
  void resize(const std::uint8_t* row, std::uint8_t* out);
  void trim() noexcept;

 private:
  void spread_weights();

  RowFormat format_{};
  Weights weights_;
  Scratch spread_;   // of every output pixel its weights, one for each sample, in pairs of pixels
  Scratch numbers_;  // a row of samples, and the sums of an output row, as 32 bit numbers
  Scratch pixels_;   // an output row
  std::uint32_t input_ = 0;
  std::uint32_t num_pairs_ = 0;  // of input pixels to an output pixel; those too many have weight 0
};

#ifdef DLIO_HAS_AVX2
// The same on a processor with AVX2, to the same bytes, in three quarters of the time that AVX2 takes PlainColumns.
class Avx2Columns {
 public:
  // As PlainColumns.
  void prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format, bool flip);
  // Reads up to 3 pixels beyond the row's end, which do not count.
  void resize(const std::uint8_t* row, std::uint8_t* out);
  void trim() noexcept;

 private:
  RowFormat format_{};
  Weights weights_;
  Scratch firsts_;             // of every output pixel the offset of its first input pixel, 32 bits
  Scratch spread_;             // of every output pixel its weights, four at a time
  std::size_t num_fours_ = 0;  // of input pixels to an output pixel; those too many have weight 0
};
#endif

}  // namespace dlio
