// The blocks of a window of restart intervals, by our Huffman decoder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.hpp"
#include "jpeg/mcu.hpp"
#include "jpeg/window.hpp"

namespace dlio {

// The tables and coefficients of a scan, kept from one to the next.
struct ScanMemory {
  HuffmanTable dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
  alignas(64) JBLOCK blocks[kMaxRunMcus * kMaxMcuBlocks];
};

// A source of PictureRows. Damage is an error where a block that is wanted lies behind it.
class ScanBlocks {
 public:
  // `jpeg` is the opened JPEG of the window, whose intervals have `interval` MCUs, or 0 where there is just one. All
  // must outlive the source.
  ScanBlocks(OpenJpeg& jpeg, const Window& window, const Mcu& mcu, std::uint32_t interval, ScanMemory& memory) noexcept;

  // Whether the tables of the opened JPEG are there and sound: of others libjpeg says what is wrong with them.
  static bool reads_tables(OpenJpeg& jpeg) noexcept;

  void skip(std::size_t num_mcus) noexcept { next_ += num_mcus; }
  const std::int16_t* read(std::uint32_t& num_mcus);

 private:
  const std::int16_t* read_two(std::uint32_t& num_mcus);
  void start(int which, std::size_t number);
  void go_to_next();
  void decode(JBLOCKROW* blocks);
  void check(bool good, const BitReader& reader);

  OpenJpeg& jpeg_;
  const Window& window_;
  ScanMemory& memory_;
  const int num_blocks_;
  const std::size_t interval_;            // MCUs
  BlockTables tables_[2][kMaxMcuBlocks];  // of the interval that is read, and of the one that is read with it
  std::uint32_t last_dc_[2][kMaxComponents] = {};
  BitReader readers_[2];
  std::size_t next_ = 0;  // the MCU that is wanted
  std::size_t at_ = 0;    // that which the reader is at
  std::size_t end_ = 0;   // of its interval
};

}  // namespace dlio
