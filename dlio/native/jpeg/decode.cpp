#include "jpeg/decode.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <vector>

#include "dispatch.hpp"
#include "jpeg/scan.hpp"
#include "jpeg/scan_blocks.hpp"
#include "jpeg/window.hpp"
#include "jpeg/window_decoder.hpp"
#include "pixels/picture.hpp"
#include "planes/make.hpp"
#include "planes/tile_blocks.hpp"
#include "planes/window_tiles.hpp"

namespace dlio {
namespace {

constexpr std::size_t kRgbxBytes = 4;

// libjpeg-turbo writes rows that begin at a multiple of 32 past the cache; the resize, which reads each row at once,
// would wait for the memory, 300 us for an image of 500 x 375.
constexpr std::size_t kMisalignment = 16;

struct Workspace {
  std::vector<std::size_t> begins;
  Window window;
  Scratch row;
  Record record;
  Scratch header, restored;
  PictureMemory picture;
  ScanMemory scan;

  void trim() noexcept {
    trim_kept(begins);
    window.trim();
    row.trim();
    record.trim();
    header.trim();
    restored.trim();
    picture.trim();
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

class DecodedRows final : public PixelRows {
 public:
  // The pixels of the box begin `offset` bytes from the beginning of the rows that are decoded into `row`.
  DecodedRows(OpenJpeg& jpeg, const Box& box, std::uint8_t* row, std::size_t offset) noexcept
      : PixelRows(box.width, box.height), jpeg_(jpeg), row_(row), offset_(offset) {}

  const std::uint8_t* next() override {
    jpeg_.trap().run([&] { read_rows(jpeg_.info(), row_, 0, 1); });
    return row_ + offset_;
  }

 private:
  OpenJpeg& jpeg_;
  std::uint8_t* const row_;
  const std::size_t offset_;
};

DLIO_FOR_AVX2_TOO
void interleave(const std::uint8_t* const (&rows)[3], std::size_t num_pixels, std::uint8_t* out) {
  const std::uint8_t *const first = rows[0], *const second = rows[1], *const third = rows[2];
  for (std::size_t x = 0; x < num_pixels; ++x) {
    out[kRgbxBytes * x] = first[x];
    out[kRgbxBytes * x + 1] = second[x];
    out[kRgbxBytes * x + 2] = third[x];
    out[kRgbxBytes * x + 3] = 0;
  }
}

// Three rows of a grey image at a time, as the channels of one.
class GreyTriples final : public PixelRows {
 public:
  // The pixels of the box begin `offset` bytes from the beginning of the rows that are decoded into `rows`, which are
  // `stride` bytes apart; `out` holds a row of the box.
  GreyTriples(OpenJpeg& jpeg, const Box& box, std::uint8_t* rows, std::size_t stride, std::size_t offset,
              std::uint8_t* out) noexcept
      : PixelRows(box.width, (box.height + 2) / 3),
        jpeg_(jpeg),
        rows_(rows),
        stride_(stride),
        offset_(offset),
        out_(out),
        left_(box.height) {}

  const std::uint8_t* next() override {
    const std::uint32_t count = std::min(left_, 3u);
    jpeg_.trap().run([&] { read_rows(jpeg_.info(), rows_, stride_, count); });
    left_ -= count;
    const std::uint8_t* const first = rows_ + offset_;
    interleave({first, first + stride_ * (count > 1), first + stride_ * (count > 2 ? 2 : 0)}, width, out_);
    return out_;
  }

 private:
  OpenJpeg& jpeg_;
  std::uint8_t* const rows_;
  const std::size_t stride_;
  const std::size_t offset_;
  std::uint8_t* const out_;
  std::uint32_t left_;
};

// Decodes the box, which lies in the image, and resizes it. A progressive image is decoded whole: its decoder may
// smooth over block borders, and its time goes into the scans anyway.
template <class Start>
void resize_decoded(OpenJpeg& jpeg, const Box& box, Start start, Scratch& scratch, const Request& request,
                    const Target& target) {
  jpeg_decompress_struct& info = jpeg.info();
  const bool partial = !info.progressive_mode && !info.arith_code;
  const bool is_grey = info.jpeg_color_space == JCS_GRAYSCALE;
  std::uint32_t first_column = 0;
  jpeg.trap().run([&] {
    info.out_color_space = is_grey ? JCS_GRAYSCALE : JCS_EXT_RGBX;
    start(info);
    if (partial && box.width < info.output_width) first_column = narrow_columns(info, box);
  });
  const std::size_t row_bytes = std::size_t{info.output_width} * kRgbxBytes + kPixelsReadAhead;
  const std::size_t grey_bytes = is_grey ? std::size_t{3} * info.output_width : 0;
  std::uint8_t* const row = scratch.at_least(kMisalignment + row_bytes + grey_bytes) + kMisalignment;
  std::uint8_t* const first = is_grey ? row + row_bytes : row;
  jpeg.trap().run([&] {
    if (box.top > 0) skip_rows(info, first, box.top, partial);
  });
  if (is_grey) {
    GreyTriples rows(jpeg, box, first, info.output_width, box.left - first_column, row);
    resize_grey(rows, box.height, part_of(request), request.flip, target);
  } else {
    DecodedRows rows(jpeg, box, first, (box.left - first_column) * kRgbxBytes);
    resize(rows, part_of(request), request.flip, target);
  }
}

// The same by our own transforms and colours.
template <class Source>
void resize_picture(const PictureFormat& format, const Box& region, const Box& box, Source& source,
                    PictureMemory& memory, const Request& request, const Target& target) {
  PictureRows<Source> rows(format, part_around(format.mcu, region.width, region.height, box), box, source, memory);
  resize(rows, part_of(request), request.flip, target);
}

// Returns the frame where our entropy decoder can read the JPEG, and sets `begins` to its intervals.
std::optional<Frame> frame_for_us(Bytes jpeg, std::vector<std::size_t>& begins) {
  const std::optional<Frame> frame = libjpeg_takes_our_decoder() ? parse_frame(jpeg) : std::nullopt;
  if (!frame || !find_intervals(jpeg, *frame, begins)) return std::nullopt;
  check_pixels(frame->width, frame->height);
  return frame;
}

void start_alone(jpeg_decompress_struct& info) { jpeg_start_decompress(&info); }

void decode_whole(Bytes jpeg, const Request& request, const Target& target, Workspace& work) {
  OpenJpeg open(jpeg);
  const Box box = checked_box(request, open.info().image_width, open.info().image_height);
  open.require_rgb_or_grey();
  resize_decoded(open, box, start_alone, work.row, request, target);
}

void decode_window(Bytes jpeg, const Frame& frame, const Request& request, const Target& target, Workspace& work) {
  const Box box = checked_box(request, frame.width, frame.height);
  const Box region = covering_intervals(frame, box);
  cut_window(jpeg, frame, work.begins, region, work.window);
  OpenJpeg open(work.window.jpeg());
  open.require_rgb_or_grey();
  const Box inside{box.left - region.left, box.top - region.top, box.width, box.height};
  Mcu mcu{};
  if (parse_mcu(jpeg, frame, mcu) && ScanBlocks::reads_tables(open)) {
    if (const std::optional<PictureFormat> format = picture_format(open, mcu, frame.width)) {
      ScanBlocks source(open, work.window, mcu, frame.restart_interval, work.scan);
      return resize_picture(*format, region, inside, source, work.picture, request, target);
    }
  }
  const std::uint32_t end = with_margin(inside.left, inside.width, region.width).end;
  const std::uint32_t num_columns = (end + frame.mcu_width - 1) / frame.mcu_width;
  const auto start = [&](jpeg_decompress_struct& info) { start_decompress(info, work.window, num_columns); };
  resize_decoded(open, inside, start, work.row, request, target);
}

// Opens the header of a region of a record, cut to whole tiles.
Bytes region_header(const Record& record, const Box& region, Workspace& work) {
  const Bytes header = full_header(record, work.header);
  const std::optional<Frame> frame = parse_frame(header);  // its offsets are others where the tables were cut out
  if (!frame) throw JpegError(Status::broken, "decode-ready record: its header does not take the standard tables");
  std::uint8_t* const bytes = work.window.bytes.at_least(header.size);
  return {bytes, static_cast<std::size_t>(append_header(header, *frame, region, bytes) - bytes)};
}

// Checks a record. Returns nothing where it can be decoded as it is; else, where libjpeg does not take our decoder, the
// JPEG that it stands for.
std::optional<Bytes> open_record(Bytes bytes, Workspace& work) {
  if (!libjpeg_takes_our_decoder()) return from_planes(bytes, work.restored);
  parse_record(bytes, work.record);
  require_checksum(bytes);
  return std::nullopt;
}

void decode_tiles(Bytes bytes, const Request& request, const Target& target, Workspace& work) {
  if (const std::optional<Bytes> jpeg = open_record(bytes, work)) return decode_whole(*jpeg, request, target, work);
  const Record& record = work.record;
  const Box box = checked_box(request, record.frame.width, record.frame.height);
  const Box region = covering_intervals(record.tiled(), box);
  OpenJpeg open(region_header(record, region, work), Markers::none, bytes.size);
  open.require_rgb_or_grey();
  const Box inside{box.left - region.left, box.top - region.top, box.width, box.height};
  if (const std::optional<PictureFormat> format = picture_format(open, record.mcu, record.frame.width)) {
    TileBlocks source(record, region);
    return resize_picture(*format, region, inside, source, work.picture, request, target);
  }
  const std::uint32_t end = with_margin(inside.left, inside.width, region.width).end;
  const auto start = [&](jpeg_decompress_struct& info) { start_tiles(info, record, region, end); };
  resize_decoded(open, inside, start, work.row, request, target);
}

void decode_or_throw(Bytes jpeg, const Request& request, const Target& target) {
  Kept<Workspace> work;
  if (is_planes(jpeg)) return decode_tiles(jpeg, request, target, *work);
  if (const std::optional<Frame> frame = frame_for_us(jpeg, work->begins)) {
    decode_window(jpeg, *frame, request, target, *work);
  } else {
    decode_whole(jpeg, request, target, *work);
  }
}

template <class Start>
Image all_pixels(OpenJpeg& jpeg, Start start) {
  jpeg.require_rgb_or_grey();
  jpeg_decompress_struct& info = jpeg.info();
  Image image{nullptr, info.image_height, info.image_width};
  const std::size_t stride = std::size_t{3} * image.width;
  image.data = allocate_aligned(stride * image.height);
  if (!image.data) throw std::bad_alloc();
  jpeg.trap().run([&] {
    info.out_color_space = JCS_RGB;
    start(info);
    read_rows(info, image.data.get(), stride, image.height);
  });
  return image;
}

Image all_pixels_of_tiles(Bytes bytes, Workspace& work) {
  if (const std::optional<Bytes> jpeg = open_record(bytes, work)) {
    OpenJpeg open(*jpeg);
    return all_pixels(open, start_alone);
  }
  const Box region{0, 0, work.record.frame.width, work.record.frame.height};
  OpenJpeg open(region_header(work.record, region, work), Markers::none, bytes.size);
  return all_pixels(open, [&](jpeg_decompress_struct& info) { start_tiles(info, work.record, region, region.width); });
}

}  // namespace

Image decode(Bytes jpeg) {
  Kept<Workspace> work;
  if (is_planes(jpeg)) return all_pixels_of_tiles(jpeg, *work);
  const std::optional<Frame> frame = frame_for_us(jpeg, work->begins);
  if (!frame) {
    OpenJpeg open(jpeg);
    return all_pixels(open, start_alone);
  }
  cut_window(jpeg, *frame, work->begins, {0, 0, frame->width, frame->height}, work->window);
  OpenJpeg open(work->window.jpeg());
  return all_pixels(open,
                    [&](jpeg_decompress_struct& info) { start_decompress(info, work->window, frame->mcus_per_row()); });
}

Status decode_box(Bytes jpeg, const Request& request, const Target& target) noexcept {
  return status_of([&] { decode_or_throw(jpeg, request, target); });
}

}  // namespace dlio
