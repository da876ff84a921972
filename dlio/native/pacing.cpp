#include "pacing.hpp"

#if __has_include(<jpegint.h>)
extern "C" {
#include <jpegint.h>
}
#endif

namespace dlio {

#if __has_include(<jpegint.h>)
namespace {

struct Pacing {
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);  // libjpeg's
  unsigned interval;                                    // MCUs
  unsigned left;                                        // of the interval at hand
};

Pacing& of_this_thread() noexcept {
  thread_local Pacing pacing{};
  return pacing;
}

// With an interval of 1 libjpeg takes a marker before this MCU and stands again at "marker due" behind it.
boolean decode_mcu_paced(j_decompress_ptr jpeg, JBLOCKROW* blocks) {
  Pacing& pacing = of_this_thread();
  jpeg->restart_interval = pacing.left == 0;
  if (pacing.left == 0) pacing.left = pacing.interval;
  --pacing.left;
  return pacing.decode_mcu(jpeg, blocks);
}

}  // namespace

void start_decompress(jpeg_decompress_struct& jpeg) {
  if (jpeg.restart_interval < 2 || jpeg.arith_code || jpeg_has_multiple_scans(&jpeg)) {
    jpeg_start_decompress(&jpeg);
    return;
  }
  Pacing& pacing = of_this_thread();
  pacing.interval = pacing.left = jpeg.restart_interval;
  jpeg.restart_interval = 0;
  jpeg_start_decompress(&jpeg);
  pacing.decode_mcu = jpeg.entropy->decode_mcu;
  jpeg.entropy->decode_mcu = decode_mcu_paced;
}
#else
void start_decompress(jpeg_decompress_struct& jpeg) { jpeg_start_decompress(&jpeg); }
#endif

}  // namespace dlio
