// Huffman coding of the blocks of a baseline JPEG's scan (ITU-T T.81, F.1.2), stuffing and restart markers included.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <jpeglib.h>

#include "memory.hpp"
#include "planes/record.hpp"

namespace dlio {

// The codes of a table by symbol; those that it has not have no bits.
struct HuffmanCodes {
  std::uint16_t code[256];
  std::uint8_t num_bits[256];

  void build(const JHUFF_TBL& table) noexcept;
};

// Appends a scan to bytes that the caller owns.
class ScanWriter {
 public:
  // Keeps the first `used` bytes of `out`.
  ScanWriter(Scratch& out, std::size_t used) noexcept : out_(out), used_(used) {}

  // Sets the tables of a component.
  void set_tables(int component, const JHUFF_TBL& dc, const JHUFF_TBL& ac) noexcept;
  // Appends an MCU of such blocks. Throws JpegError where a table has not the code for a coefficient.
  void append(const std::int16_t* blocks, const Mcu& mcu);
  // Ends an interval, whose last byte is filled up with ones; and the marker of its number.
  void append_restart(std::uint32_t number);
  // Ends the scan. Returns how many bytes there are now.
  std::size_t finish();

 private:
  void append_block(const std::int16_t* block, int component);
  static std::uint8_t* write_word(std::uint64_t buffer, unsigned count, std::uint8_t* at) noexcept;
  void align();

  Scratch& out_;
  std::size_t used_;
  HuffmanCodes dc_[kMaxComponents], ac_[kMaxComponents];
  std::int32_t last_dc_[kMaxComponents] = {};
  std::uint64_t buffer_ = 0;  // its lowest `count_` bits wait
  unsigned count_ = 0;
};

}  // namespace dlio
