#include "planes/scan_writer.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/huffman.hpp"
#include "planes/tile.hpp"

namespace dlio {
namespace {

constexpr std::uint8_t kZigzag[kBlockSize] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                              12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                              35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                              58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

constexpr unsigned kSixteenZeros = 0xF0, kEndOfBlock = 0;
constexpr std::uint8_t kMarker = 0xFF, kFirstRestart = 0xD0;

// Returns how many bits a value has, and these: those of a negative one are inverted (F.1.2.1).
struct Value {
  explicit Value(std::int32_t value) noexcept
      : num_bits(value == 0 ? 0 : 32 - static_cast<unsigned>(__builtin_clz(static_cast<unsigned>(std::abs(value))))),
        bits(static_cast<std::uint32_t>(value < 0 ? value - 1 : value) & ((1u << num_bits) - 1)) {}
  unsigned num_bits;
  std::uint32_t bits;
};

}  // namespace

void HuffmanCodes::build(const JHUFF_TBL& table) noexcept {
  std::fill(std::begin(num_bits), std::end(num_bits), std::uint8_t{0});
  std::fill(std::begin(code), std::end(code), std::uint16_t{0});
  std::uint32_t next = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length, next <<= 1) {
    for (int i = 0; i < table.bits[length] && index < 256; ++i, ++index, ++next) {
      code[table.huffval[index]] = static_cast<std::uint16_t>(next & ((1u << length) - 1));
      num_bits[table.huffval[index]] = static_cast<std::uint8_t>(length);
    }
  }
}

void ScanWriter::set_tables(int component, const JHUFF_TBL& dc, const JHUFF_TBL& ac) noexcept {
  dc_[component].build(dc);
  ac_[component].build(ac);
}

// At most 63 bits wait: 31 stay behind, and a code with its value has 32.
void ScanWriter::append_symbol(const HuffmanCodes& codes, unsigned symbol, std::uint32_t bits, unsigned num_bits) {
  const unsigned code_bits = codes.num_bits[symbol];
  if (code_bits == 0) throw JpegError(Status::damaged, "a coefficient that the JPEG's Huffman tables have no code for");
  buffer_ = (buffer_ << code_bits | codes.code[symbol]) << num_bits | bits;
  count_ += code_bits + num_bits;
  if (count_ >= 32) write_full_bytes();
}

void ScanWriter::write_full_bytes() noexcept {
  std::uint8_t* at = out_.data() + used_;
  const auto word = static_cast<std::uint32_t>(buffer_ >> (count_ >= 32 ? count_ - 32 : 0));
  if (count_ >= 32 && (word & 0x80808080u & ~(word + 0x01010101u)) == 0) {  // no byte is FF
    for (int shift = 24; shift >= 0; shift -= 8) *at++ = static_cast<std::uint8_t>(word >> shift);
    count_ -= 32;
  }
  for (; count_ >= 8; count_ -= 8) {
    *at = static_cast<std::uint8_t>(buffer_ >> (count_ - 8));
    if (*at++ == kMarker) *at++ = 0;
  }
  used_ = static_cast<std::size_t>(at - out_.data());
}

void ScanWriter::append_block(const std::int16_t* block, int component) {
  const Value difference(block[0] - last_dc_[component]);
  last_dc_[component] = block[0];
  append_symbol(dc_[component], difference.num_bits, difference.bits, difference.num_bits);
  const HuffmanCodes& ac = ac_[component];
  unsigned zeros = 0;
  for (int k = 1; k < kBlockSize; ++k) {
    const std::int32_t coefficient = block[kZigzag[k]];
    if (coefficient == 0) {
      ++zeros;
      continue;
    }
    for (; zeros > 15; zeros -= 16) append_symbol(ac, kSixteenZeros, 0, 0);
    const Value value(coefficient);
    append_symbol(ac, zeros << 4 | value.num_bits, value.bits, value.num_bits);
    zeros = 0;
  }
  if (zeros > 0) append_symbol(ac, kEndOfBlock, 0, 0);
}

void ScanWriter::append(const std::int16_t* blocks, const Mcu& mcu) {
  const std::size_t needed = used_ + 2 * kMaxMcuBytes + 64;  // each byte may need another behind it
  if (needed > out_.capacity() && !out_.grow(2 * needed, used_)) throw std::bad_alloc();
  for (int i = 0; i < mcu.num_blocks; ++i) append_block(blocks + i * kBlockSize, mcu.component[i]);
}

void ScanWriter::align() {
  const unsigned missing = (8 - count_ % 8) % 8;
  buffer_ = buffer_ << missing | ((1u << missing) - 1);
  count_ += missing;
  if (count_ > 0) write_full_bytes();
}

void ScanWriter::append_restart(std::uint32_t number) {
  align();
  out_.data()[used_++] = kMarker;
  out_.data()[used_++] = static_cast<std::uint8_t>(kFirstRestart + number % 8);
  std::fill(std::begin(last_dc_), std::end(last_dc_), 0);
}

std::size_t ScanWriter::finish() {
  align();
  return used_;
}

}  // namespace dlio
