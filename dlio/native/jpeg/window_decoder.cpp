// The one place that touches a private structure of libjpeg: `jpeg_entropy_decoder`, whose function `decode_mcu`
// libjpeg calls for each MCU, and which is exchanged here.
//
// Why this is safe: `start_pass` and `decode_mcu` have been the first two members, of these types, in every release of
// the IJG's libjpeg (6b to 9f), libjpeg-turbo (1.0 to 3.1) and mozjpeg. The public structure that points to it is
// checked by libjpeg itself: jpeg_create_decompress fails where the library that is loaded has another version or
// another size of it than the headers that the core was built with. And before the first use libjpeg_takes_our_decoder
// tries the exchange on its own small JPEG, since the library that is loaded may still be another than the one at
// build time.
//
// Where the try fails, nothing is exchanged: `decode.cpp` then decodes windows as it decodes any JPEG, by libjpeg
// alone, with the same pixels, and `_jpeg.TAKES_OUR_DECODER` is False.
#include "jpeg/window_decoder.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include <jerror.h>

#include "jpeg/scan.hpp"

namespace dlio {
namespace {

// The beginning of libjpeg's `struct jpeg_entropy_decoder` (jpegint.h).
struct EntropyDecoder {
  void (*start_pass)(j_decompress_ptr);
  DecodeMcu decode_mcu;
};

struct IntervalDecoder {
  HuffmanTable dc[NUM_HUFF_TBLS];
  HuffmanTable ac[NUM_HUFF_TBLS];
  BlockTables blocks[D_MAX_BLOCKS_IN_MCU];
  const std::uint8_t* bytes;
  const std::size_t* begin;  // of the next interval, within bytes
  const std::size_t* last;   // where the last interval ends
  std::uint32_t mcus_per_interval;
  std::uint32_t mcus_left;
  std::uint32_t mcus_per_row;
  std::uint32_t num_columns;  // MCUs of a row to decode
  std::uint32_t column;
  BitReader reader;
  std::uint32_t last_dc[MAX_COMPS_IN_SCAN];

  static IntervalDecoder& of_this_thread() noexcept {
    thread_local IntervalDecoder decoder;
    return decoder;
  }

  void start_interval(j_decompress_ptr jpeg) {
    if (begin == last) ERREXIT(jpeg, JERR_INPUT_EOF);
    reader = BitReader(bytes + begin[0], bytes + begin[1]);
    ++begin;
    mcus_left = mcus_per_interval;
    std::fill_n(last_dc, MAX_COMPS_IN_SCAN, 0u);
  }
};

// `blocks` is null where libjpeg skips the MCU.
boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW* blocks) {
  IntervalDecoder& decoder = IntervalDecoder::of_this_thread();
  if (decoder.mcus_left == 0) decoder.start_interval(jpeg);
  --decoder.mcus_left;
  const std::uint32_t column = decoder.column++;
  if (decoder.column == decoder.mcus_per_row) decoder.column = 0;
  if (column >= decoder.num_columns) return TRUE;
  if (!decode_blocks(decoder.reader, decoder.blocks, jpeg->blocks_in_MCU, blocks)) {
    WARNMS(jpeg, JWRN_HUFF_BAD_CODE);
  }
  if (decoder.reader.is_overrun()) WARNMS(jpeg, JWRN_HIT_MARKER);
  return TRUE;
}

}  // namespace

void exchange_decoder(jpeg_decompress_struct& jpeg, DecodeMcu decode_mcu) noexcept {
  reinterpret_cast<EntropyDecoder*>(jpeg.entropy)->decode_mcu = decode_mcu;
}

void start_decompress(jpeg_decompress_struct& jpeg, const Window& window, std::uint32_t num_columns) {
  jpeg_start_decompress(&jpeg);
  IntervalDecoder& decoder = IntervalDecoder::of_this_thread();
  for (int i = 0; i < jpeg.comps_in_scan; ++i) {
    const jpeg_component_info& info = *jpeg.cur_comp_info[i];
    decoder.dc[info.dc_tbl_no].build(*jpeg.dc_huff_tbl_ptrs[info.dc_tbl_no]);
    decoder.ac[info.ac_tbl_no].build(*jpeg.ac_huff_tbl_ptrs[info.ac_tbl_no]);
  }
  for (int i = 0; i < jpeg.blocks_in_MCU; ++i) {
    const int component = jpeg.MCU_membership[i];
    const jpeg_component_info& info = *jpeg.cur_comp_info[component];
    decoder.blocks[i] = {&decoder.dc[info.dc_tbl_no], &decoder.ac[info.ac_tbl_no], &decoder.last_dc[component]};
  }
  decoder.bytes = window.bytes.data();
  decoder.begin = window.begins.data();
  decoder.last = decoder.begin + window.begins.size() - 1;
  constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();
  decoder.mcus_per_interval = jpeg.restart_interval > 0 ? jpeg.restart_interval : kAll;
  decoder.mcus_left = 0;
  decoder.mcus_per_row = jpeg.MCUs_per_row;
  decoder.num_columns = jpeg.restart_interval > 0 ? num_columns : kAll;
  decoder.column = 0;
  exchange_decoder(jpeg, decode_mcu);
}

namespace {

// Four MCUs of one block, two intervals to a row.
constexpr std::size_t kSide = 16;
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
  const Picture ours =
      read(window.jpeg(), [&](jpeg_decompress_struct& info) { start_decompress(info, window, kSide / 8); });
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
