// What a JPEG's headers say.
#pragma once

#include <cstdint>
#include <string>

#include "jpeg/codec.hpp"

namespace dlio {

struct Probe {
  std::uint32_t width;
  std::uint32_t height;
  int components;           // 1 grey, 3 colour, 4 CMYK or YCCK
  std::string subsampling;  // "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "grey", else "other"
  bool progressive;
  bool crop_ready;
  bool complete;    // the marker of the end exists
  int orientation;  // EXIF: 1 as stored .. 8
};

// Throws JpegError where the headers are bad.
Probe probe(Bytes jpeg);

struct Size {
  std::int64_t height;
  std::int64_t width;
};

// What probe finds of a JPEG that it finds nothing wrong with; 0 x 0 of any other.
Size measure(Bytes jpeg) noexcept;

}  // namespace dlio
