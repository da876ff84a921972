// Writing pixels as a JPEG.
#pragma once

#include "jpeg/codec.hpp"
#include "resize/pixels.hpp"

namespace dlio {

// Returns the pixels as libjpeg writes them by default, a baseline JPEG with 4:2:0 subsampling, in the memory of `out`.
// `quality` is libjpeg's, 1 to 100. Throws JpegError where the size is none that a JPEG can have, or memory is out.
Bytes encode(const RgbPixels& pixels, int quality, Scratch& out);

}  // namespace dlio
