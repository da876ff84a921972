#include "decode.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "intervals.hpp"
#include "scan.hpp"

namespace dlio {
namespace {

constexpr std::size_t kRgbxBytes = 4;

struct Workspace {
  std::vector<std::size_t> begins;
  Window window;
  Scratch pixels;

  void trim() noexcept {
    trim_kept(begins);
    window.trim();
    pixels.trim();
  }
};

void read_rows(jpeg_decompress_struct& jpeg, std::uint8_t* first, std::size_t stride, std::uint32_t num_rows) {
  for (std::uint32_t y = 0; y < num_rows;) {
    JSAMPROW row = first + y * stride;
    y += jpeg_read_scanlines(&jpeg, &row, 1);
  }
}

// Reads rows up to `end` and forgets them: jpeg_skip_scanlines where libjpeg can jump over the work.
void skip_rows(jpeg_decompress_struct& jpeg, std::uint8_t* row, std::uint32_t end, bool can_jump) {
  if (can_jump) jpeg_skip_scanlines(&jpeg, end);
  if (jpeg.output_scanline < end) read_rows(jpeg, row, 0, end - jpeg.output_scanline);
}

// Narrows the columns that are decoded to those of the box and its margin. Returns the first one's position.
std::uint32_t narrow_columns(jpeg_decompress_struct& jpeg, const Box& box) {
  const Range columns = with_margin(box.left, box.width, jpeg.output_width);
  JDIMENSION first = columns.begin;
  JDIMENSION width = columns.end - columns.begin;
  jpeg_crop_scanline(&jpeg, &first, &width);
  return first;
}

// Decodes the box, which lies in the image, to memory of this thread. A progressive image is decoded whole: its
// decoder may smooth over block borders, and its time goes into the scans anyway.
template <class Start>
Pixels decode_pixels(OpenJpeg& jpeg, const Box& box, Scratch& scratch, Start start) {
  jpeg_decompress_struct& info = jpeg.info();
  const bool partial = !info.progressive_mode && !info.arith_code;
  std::uint32_t first_column = 0;
  jpeg.trap().run([&] {
    info.out_color_space = JCS_EXT_RGBX;
    start(info);
    if (partial && box.width < info.output_width) first_column = narrow_columns(info, box);
  });
  const std::size_t stride = info.output_width * kRgbxBytes;
  std::uint8_t* const rows = scratch.at_least(stride * box.height + kPixelsReadAhead);
  jpeg.trap().run([&] {
    if (box.top > 0) skip_rows(info, rows, box.top, partial);
    read_rows(info, rows, stride, box.height);
  });
  return {rows + (box.left - first_column) * kRgbxBytes, stride, box.width, box.height};
}

void decode_whole(Bytes jpeg, const Request& request, const Target& target, Workspace& work) {
  OpenJpeg open(jpeg);
  const Box box = checked_box(request, open.info().image_width, open.info().image_height);
  open.require_rgb_or_grey();
  const auto start = [](jpeg_decompress_struct& info) { jpeg_start_decompress(&info); };
  resize(decode_pixels(open, box, work.pixels, start), part_of(request), request.flip, target);
}

void decode_window(Bytes jpeg, const Frame& frame, const Request& request, const Target& target, Workspace& work) {
  check_pixels(frame.width, frame.height);
  const Box box = checked_box(request, frame.width, frame.height);
  const Box region = covering_intervals(frame, box);
  cut_window(jpeg, frame, work.begins, region, work.window);
  OpenJpeg open(work.window.jpeg());
  open.require_rgb_or_grey();
  const Box inside{box.left - region.left, box.top - region.top, box.width, box.height};
  const std::uint32_t end = with_margin(inside.left, inside.width, region.width).end;
  const std::uint32_t num_columns = (end + frame.mcu_width - 1) / frame.mcu_width;
  const auto start = [&](jpeg_decompress_struct& info) { start_decompress(info, work.window, num_columns); };
  resize(decode_pixels(open, inside, work.pixels, start), part_of(request), request.flip, target);
}

void decode_or_throw(Bytes jpeg, const Request& request, const Target& target) {
  Kept<Workspace> work;
  const std::optional<Frame> frame = parse_frame(jpeg);
  if (libjpeg_takes_our_decoder() && frame && find_intervals(jpeg, *frame, work->begins)) {
    decode_window(jpeg, *frame, request, target, *work);
  } else {
    decode_whole(jpeg, request, target, *work);
  }
}

}  // namespace

Image decode(Bytes bytes) {
  OpenJpeg jpeg(bytes);
  jpeg.require_rgb_or_grey();
  jpeg_decompress_struct& info = jpeg.info();
  Image image{nullptr, info.image_height, info.image_width};
  const std::size_t stride = std::size_t{3} * image.width;
  image.data = allocate_aligned(stride * image.height);
  if (!image.data) throw std::bad_alloc();
  jpeg.trap().run([&] {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    read_rows(info, image.data.get(), stride, image.height);
  });
  return image;
}

Status decode_box(Bytes jpeg, const Request& request, const Target& target) noexcept {
  try {
    decode_or_throw(jpeg, request, target);
    return Status::decoded;
  } catch (const JpegError& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

}  // namespace dlio
