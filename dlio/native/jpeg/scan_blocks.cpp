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
    for (int j = 0; j < 2; ++j) {
      tables_[j][i] = {&memory.dc[component.dc_tbl_no], &memory.ac[component.ac_tbl_no],
                       &last_dc_[j][mcu.component[i]]};
    }
  }
}

const std::int16_t* ScanBlocks::read(std::uint32_t& num_mcus) {
  if (next_ >= end_ && interval_ <= kMaxRunMcus / 2 && next_ % interval_ + num_mcus > interval_) {
    return read_two(num_mcus);
  }
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

// Reads the interval of the next MCU, and what is wanted of the one behind it.
const std::int16_t* ScanBlocks::read_two(std::uint32_t& num_mcus) {
  const std::size_t number = next_ / interval_, skipped = next_ % interval_;
  const std::size_t num_others = std::min(skipped + num_mcus - interval_, interval_);
  start(0, number);
  start(1, number + 1);
  const auto stride = static_cast<std::size_t>(num_blocks_);
  std::memset(memory_.blocks, 0, (interval_ + num_others) * stride * sizeof(JBLOCK));
  JBLOCK *block = memory_.blocks, *other = block + interval_ * stride;
  for (std::size_t i = 0; i < num_others; ++i, block += stride, other += stride) {
    const bool good = decode_two_mcus(readers_, tables_, num_blocks_, block, other);
    check(good, readers_[0]);
    check(good, readers_[1]);
  }
  for (std::size_t i = num_others; i < interval_; ++i, block += stride) {
    JBLOCKROW blocks[kMaxMcuBlocks];
    for (int j = 0; j < num_blocks_; ++j) blocks[j] = block + j;
    decode(blocks);
  }
  num_mcus = static_cast<std::uint32_t>(interval_ - skipped + num_others);
  next_ += num_mcus;
  end_ = 0;  // a caller that needs the rest of the other one begins it again
  return memory_.blocks[skipped * stride];
}

void ScanBlocks::start(int which, std::size_t number) {
  const std::uint8_t* const bytes = window_.bytes.data();
  readers_[which] = BitReader(bytes + window_.begins[number], bytes + window_.begins[number + 1]);
  std::fill(std::begin(last_dc_[which]), std::end(last_dc_[which]), 0u);
}

void ScanBlocks::go_to_next() {
  if (next_ >= end_) {
    const std::size_t number = next_ / interval_;
    start(0, number);
    at_ = number * interval_;
    end_ = number * interval_ + interval_;
  }
  while (at_ < next_) decode(nullptr);
}

void ScanBlocks::decode(JBLOCKROW* blocks) {
  const bool good = decode_blocks(readers_[0], tables_[0], num_blocks_, blocks);
  ++at_;
  check(good, readers_[0]);
}

// Damage ends the decode as libjpeg's own warnings do.
void ScanBlocks::check(bool good, const BitReader& reader) {
  if (good && !reader.is_overrun()) return;
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
