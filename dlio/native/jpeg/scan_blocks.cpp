#include "jpeg/scan_blocks.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include <jerror.h>  // after jpeglib.h, whose version decides the numbers of the errors

namespace dlio {
namespace {

const JHUFF_TBL* table_of(JHUFF_TBL* const (&tables)[NUM_HUFF_TBLS], int number) noexcept {
  return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
}

}  // namespace

bool ScanBlocks::reads_tables(OpenJpeg& jpeg) noexcept {
  const jpeg_decompress_struct& info = jpeg.info();
  for (int i = 0; i < info.comps_in_scan; ++i) {
    const jpeg_component_info& component = *info.cur_comp_info[i];
    const JHUFF_TBL* const dc = table_of(info.dc_huff_tbl_ptrs, component.dc_tbl_no);
    const JHUFF_TBL* const ac = table_of(info.ac_huff_tbl_ptrs, component.ac_tbl_no);
    if (dc == nullptr || ac == nullptr || !HuffmanTable::is_sound(*dc, HuffmanTable::kLargestDc) ||
        !HuffmanTable::is_sound(*ac, HuffmanTable::kLargestAc)) {
      return false;
    }
  }
  return true;
}

ScanBlocks::ScanBlocks(OpenJpeg& jpeg, const Window& window, const Mcu& mcu, std::uint32_t interval,
                       ScanMemory& memory) noexcept
    : jpeg_(jpeg),
      window_(window),
      memory_(memory),
      num_blocks_(mcu.num_blocks),
      interval_(interval > 0 ? interval : std::numeric_limits<std::size_t>::max()) {
  const jpeg_decompress_struct& info = jpeg.info();
  for (int i = 0; i < mcu.num_components; ++i) {
    const jpeg_component_info& component = *info.cur_comp_info[i];
    memory.dc[component.dc_tbl_no].build(*info.dc_huff_tbl_ptrs[component.dc_tbl_no]);
    memory.ac[component.ac_tbl_no].build(*info.ac_huff_tbl_ptrs[component.ac_tbl_no]);
  }
  for (int i = 0; i < num_blocks_; ++i) {
    const jpeg_component_info& component = *info.cur_comp_info[mcu.component[i]];
    tables_[i] = {&memory.dc[component.dc_tbl_no], &memory.ac[component.ac_tbl_no], &last_dc_[mcu.component[i]]};
  }
}

const std::int16_t* ScanBlocks::read(std::uint32_t& num_mcus) {
  go_to_next();
  num_mcus = static_cast<std::uint32_t>(std::min<std::size_t>({num_mcus, kMaxRunMcus, end_ - at_}));
  std::memset(memory_.blocks, 0, num_mcus * static_cast<std::size_t>(num_blocks_) * sizeof(JBLOCK));
  JBLOCKROW blocks[kMaxMcuBlocks];
  for (int i = 0; i < num_blocks_; ++i) blocks[i] = &memory_.blocks[i];
  for (std::uint32_t mcu = 0; mcu < num_mcus; ++mcu) {
    decode(blocks);
    for (int i = 0; i < num_blocks_; ++i) blocks[i] += num_blocks_;
  }
  next_ = at_;
  return memory_.blocks[0];
}

void ScanBlocks::go_to_next() {
  if (next_ >= end_) {
    const std::size_t number = next_ / interval_;
    reader_ =
        BitReader(window_.bytes.data() + window_.begins[number], window_.bytes.data() + window_.begins[number + 1]);
    std::fill(std::begin(last_dc_), std::end(last_dc_), 0u);
    at_ = number * interval_;
    end_ = number * interval_ + interval_;
  }
  while (at_ < next_) decode(nullptr);
}

// Damage ends the decode as libjpeg's own warnings do.
void ScanBlocks::decode(JBLOCKROW* blocks) {
  const bool good = decode_blocks(reader_, tables_, num_blocks_, blocks);
  ++at_;
  if (good && !reader_.is_overrun()) return;
  jpeg_decompress_struct& info = jpeg_.info();
  jpeg_.trap().run([&] {
    if (good) {
      WARNMS(&info, JWRN_HIT_MARKER);
    } else {
      WARNMS(&info, JWRN_HUFF_BAD_CODE);
    }
  });
}

}  // namespace dlio
