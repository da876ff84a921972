// libjpeg's working memory, kept from one image to the next.
#pragma once

#include <cstddef>
#include <cstdio>
#include <vector>

#include <jpeglib.h>

#include "memory.hpp"

namespace dlio {

// libjpeg's memory manager with one arena for each image instead of malloc and free.
//
// libjpeg reaches its memory through the table of functions in `codec->mem`; `attach` puts the arena's functions
// there. What libjpeg allocated before stays with libjpeg; everything later lives until the image is closed, also
// the tables that libjpeg would keep for the next image: the code that opens an image clears the pointers to them.
// Virtual arrays of blocks are real arrays. Those of samples (colour quantisation, and lossless JPEGs of several scans
// from libjpeg-turbo 3 on) are refused as unsupported.
class Arena {
 public:
  void attach(j_common_ptr codec) noexcept;
  // Returns `size` bytes aligned for SIMD, with room behind them for a SIMD over-read; nullptr where memory is out.
  void* allocate(std::size_t size) noexcept;
  void reset() noexcept;

 private:
  struct Block {
    AlignedBytes data;
    std::size_t size;
  };
  bool add_block(std::size_t size) noexcept;

  std::vector<Block> blocks_;
  std::size_t used_ = 0;   // bytes taken of the last block
  std::size_t total_ = 0;  // bytes of all blocks
};

}  // namespace dlio
