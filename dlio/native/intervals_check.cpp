// Whether our entropy decoder can stand in for that of the libjpeg which is loaded.
//
// Its place is in a structure that no public header shows, and the library found at run time need not be the one that
// the core was built with.
#include <algorithm>
#include <array>
#include <new>

#include "intervals.hpp"
#include "scan.hpp"

namespace dlio {
namespace {

// Four MCUs of one block, two intervals to a row.
constexpr std::uint32_t kSide = 16;
using Picture = std::array<std::uint8_t, kSide * kSide>;

Picture slope() noexcept {
  Picture pixels;
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7 % 251);
  return pixels;
}

Bytes write(ErrorTrap& trap, const Picture& pixels, Scratch& out) {
  JpegWriter writer(trap, out);
  jpeg_compress_struct& jpeg = writer.info();
  trap.run([&] {
    jpeg.image_width = jpeg.image_height = kSide;
    jpeg.input_components = 1;
    jpeg.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&jpeg);
    jpeg.restart_interval = 1;
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < kSide) {
      JSAMPROW row = const_cast<JSAMPROW>(pixels.data()) + jpeg.next_scanline * kSide;
      jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
  });
  return writer.written();
}

// Throws JpegError.
template <class Start>
Picture read(Bytes bytes, Start start) {
  OpenJpeg open(bytes);
  Picture pixels{};
  open.trap().run([&] {
    start(open.info());
    while (open.info().output_scanline < kSide) {
      JSAMPROW row = pixels.data() + open.info().output_scanline * kSide;
      jpeg_read_scanlines(&open.info(), &row, 1);
    }
  });
  return pixels;
}

bool reads_the_same() {
  ErrorTrap trap;
  Scratch memory;
  const Bytes jpeg = write(trap, slope(), memory);
  const std::optional<Frame> frame = parse_frame(jpeg);
  std::vector<std::size_t> begins;
  if (!frame || !find_intervals(jpeg, *frame, begins)) return false;
  Window window;
  cut_window(jpeg, *frame, begins, {0, 0, kSide, kSide}, window);
  const Picture ours = read(window.jpeg(), [&](jpeg_decompress_struct& info) { start_decompress(info, window, kSide / 8); });
  return ours == read(jpeg, [](jpeg_decompress_struct& info) { jpeg_start_decompress(&info); });
}

bool check() noexcept {
  try {
    return reads_the_same();
  } catch (const JpegError&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

bool libjpeg_takes_our_decoder() {
  static const bool takes = check();
  return takes;
}

}  // namespace dlio
