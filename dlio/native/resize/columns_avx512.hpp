// Resizing rows with AVX-512, exactly.
#pragma once

#include "dispatch.hpp"

#ifdef DLIO_HAS_AVX2

#include "resize/columns.hpp"

namespace dlio {

// The same as PlainColumns to the same bytes, for rows of planes too.
class Avx512Columns {
 public:
  // As PlainColumns.
  void prepare(Filter filter, const Stretch& part, std::uint32_t input, const RowFormat& format, bool flip);
  // `plane_step` as that of PixelRows. Reads up to kPixelsReadAhead bytes beyond a plane's end, which do not count.
  void resize(const std::uint8_t* row, std::size_t plane_step, std::uint8_t* out);
  void trim() noexcept;

 private:
  void spread_weights();

  RowFormat format_{};
  Weights weights_;
  Scratch groups_;             // of 16 output pixels each
  Scratch planes_;             // of a row that comes without
  std::uint32_t input_ = 0;    // pixels
  std::size_t num_fours_ = 0;  // of input pixels to an output pixel; those too many have weight 0
  bool is_near_ = false;       // whether what a group takes of four input pixels each lies within 64
};

}  // namespace dlio
#endif
