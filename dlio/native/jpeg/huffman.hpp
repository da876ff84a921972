// Huffman decoding of the blocks of a sequential JPEG (ITU-T T.81, F.2.2) from bytes without stuffing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>

#include "jpeg/mcu.hpp"

namespace dlio {

// A block is at most 64 codes of 16 bits, each with as many bits of value; an MCU has at most 10 blocks.
constexpr std::size_t kMaxMcuBytes = D_MAX_BLOCKS_IN_MCU * DCTSIZE2 * 4;

// Readable bytes that must follow the last interval: a reader that runs over its end is stopped after the MCU.
constexpr std::size_t kReadAhead = kMaxMcuBytes + 16;

// A Huffman code and the value behind it; all zero where there is none.
struct Code {
  std::uint16_t packed;

  unsigned num_bits() const noexcept { return packed & 63u; }  // of both
  unsigned value_bits() const noexcept { return packed >> 8 & 15u; }
  unsigned run() const noexcept { return packed >> 12; }  // zeros before the coefficient
};

// Bits from the first of a byte on. The buffer holds them at its upper end.
class BitReader {
 public:
  BitReader() = default;
  BitReader(const std::uint8_t* begin, const std::uint8_t* end) noexcept : at_(begin), end_(end) {}

  // Makes at least 56 bits available. Without a branch: whether the buffer is low cannot be predicted.
  void refill() noexcept {
    std::uint64_t word;
    std::memcpy(&word, at_, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    bits_ |= word >> count_;
    at_ += (63 - count_) / 8;
    count_ |= 56;
  }

  std::uint32_t peek(unsigned num_bits) const noexcept { return static_cast<std::uint32_t>(bits_ >> (64 - num_bits)); }

  // Returns the value behind a code that has one: negative ones are the inverted bits, and so begin with a 0 (F.2.2.1).
  std::int32_t value(const Code& code) const noexcept {
    const auto bits = static_cast<std::int64_t>(bits_ << (code.num_bits() - code.value_bits()));
    const std::int64_t negative = ~(bits >> 63);  // all ones, or 0
    const auto magnitude = static_cast<std::uint64_t>(bits ^ negative) >> (64 - code.value_bits());
    return static_cast<std::int32_t>((static_cast<std::int64_t>(magnitude) ^ negative) - negative);
  }

  void drop(const Code& code) noexcept {
    bits_ <<= code.num_bits();
    count_ -= code.num_bits();
  }

  // Whether a code and its value, 31 bits at most, are certain to be in the buffer. Two codes after refill they nearly
  // always are, which a processor predicts well.
  bool has_code() const noexcept { return count_ >= 31; }

  bool is_overrun() const noexcept { return at_ - count_ / 8 > end_; }

 private:
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  std::uint64_t bits_ = 0;
  unsigned count_ = 0;
};

// A Huffman table made ready to decode.
class HuffmanTable {
 public:
  static constexpr int kLargestDc = 15, kLargestAc = 255;  // symbols

  // Whether a table passes libjpeg's own checks: its codes fit into their bits, none is all ones, and no symbol is
  // larger.
  static bool is_sound(const JHUFF_TBL& table, int largest_symbol) noexcept;

  // `table` is sound.
  void build(const JHUFF_TBL& table) noexcept;

  // Returns the code that is next in a refilled reader; none where there is no such code.
  Code next(const BitReader& reader) const noexcept {
    const Code code = codes_[reader.peek(kLookahead)];
    return __builtin_expect(code.packed == 0, 0) ? long_code(reader.peek(16)) : code;
  }

 private:
  static constexpr unsigned kLookahead = 11;  // bits; 9 took 1% longer for a crop

  Code long_code(std::uint32_t bits) const noexcept;

  Code codes_[1u << kLookahead];
  std::uint32_t limit_[17];  // by length: the first 16 bits that are beyond this length's codes
  std::int32_t offset_[17];  // by length: the index of its first symbol, less its first code
  std::uint8_t symbols_[256];
};

// What a block of an MCU is decoded with.
struct BlockTables {
  const HuffmanTable* dc;
  const HuffmanTable* ac;
  std::uint32_t* last_dc;  // of its component
};

// Decodes the `num_blocks` blocks of an MCU: coefficients in natural order into `blocks`, which are zero; null where
// they are not wanted. Returns whether all codes were good.
bool decode_blocks(BitReader& reader, const BlockTables* tables, int num_blocks, JBLOCKROW* blocks) noexcept;

// Decodes the `num_blocks` blocks of an MCU of each of two intervals, which have the same Huffman tables. Their codes
// are read in turns: while one waits for its table, the processor continues with the other. Returns whether all codes
// were good.
bool decode_two_mcus(BitReader (&readers)[2], const BlockTables (&tables)[2][kMaxMcuBlocks], int num_blocks,
                     JBLOCK* blocks, JBLOCK* others) noexcept;

}  // namespace dlio
