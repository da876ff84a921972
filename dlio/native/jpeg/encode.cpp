#include "jpeg/encode.hpp"

#include <algorithm>
#include <string>

namespace dlio {

Bytes encode(const RgbPixels& pixels, int quality, Scratch& out) {
  if (std::max(pixels.width, pixels.height) > JPEG_MAX_DIMENSION) {
    throw JpegError(Status::too_large, std::to_string(pixels.width) + " x " + std::to_string(pixels.height) +
                                           ", a JPEG has at most " + std::to_string(JPEG_MAX_DIMENSION) + " a side");
  }
  ErrorTrap trap;
  JpegWriter writer(trap, out);
  jpeg_compress_struct& jpeg = writer.info();
  trap.run([&] {
    jpeg.image_width = static_cast<JDIMENSION>(pixels.width);
    jpeg.image_height = static_cast<JDIMENSION>(pixels.height);
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, quality, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < jpeg.image_height) {
      auto* row = const_cast<JSAMPLE*>(pixels.data + 3 * pixels.width * jpeg.next_scanline);  // libjpeg only reads it
      jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
  });
  return writer.written();
}

}  // namespace dlio
