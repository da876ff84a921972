#include "intervals.hpp"

#include <algorithm>
#include <limits>

#include <jerror.h>

namespace dlio {
namespace {

// The beginning of libjpeg's `struct jpeg_entropy_decoder` (jpegint.h), the same in all its versions and forks.
struct EntropyDecoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
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
  reinterpret_cast<EntropyDecoder*>(jpeg.entropy)->decode_mcu = decode_mcu;
}

}  // namespace dlio
