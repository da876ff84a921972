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

// Writes the first 32 bits that wait.
std::uint8_t* ScanWriter::write_word(std::uint64_t buffer, unsigned count, std::uint8_t* at) noexcept {
  const auto word = static_cast<std::uint32_t>(buffer >> (count - 32));
  const bool has_marker = (word & 0x80808080u & ~(word + 0x01010101u)) != 0;  // a byte that is FF
  for (int shift = 24; shift >= 0; shift -= 8) {
    *at = static_cast<std::uint8_t>(word >> shift);
    if (*at++ == kMarker && has_marker) *at++ = 0;
  }
  return at;
}

void ScanWriter::append_block(const std::int16_t* block, int component) {
  // Copies stay in registers. At most 63 bits wait: 31 stay behind, and a code with its value has 32.
  std::uint8_t* at = out_.data() + used_;
  std::uint64_t buffer = buffer_;
  unsigned count = count_;
  bool missing = false;
  const auto append_symbol = [&](const HuffmanCodes& codes, unsigned symbol, const Value& value) {
    const unsigned code_bits = codes.num_bits[symbol];
    missing |= code_bits == 0;
    buffer = (buffer << code_bits | codes.code[symbol]) << value.num_bits | value.bits;
    count += code_bits + value.num_bits;
    if (count < 32) return;
    at = write_word(buffer, count, at);
    count -= 32;
  };
  const Value difference(block[0] - last_dc_[component]), none(0);
  last_dc_[component] = block[0];
  append_symbol(dc_[component], difference.num_bits, difference);
  const HuffmanCodes& ac = ac_[component];
  std::uint64_t nonzeros = 0;  // in zigzag order
  for (int k = 1; k < kBlockSize; ++k) nonzeros |= std::uint64_t{block[kZigzag[k]] != 0} << k;
  int last = 0;
  for (; nonzeros != 0; nonzeros &= nonzeros - 1) {
    const int k = __builtin_ctzll(nonzeros);
    int zeros = k - last - 1;
    for (; zeros > 15; zeros -= 16) append_symbol(ac, kSixteenZeros, none);
    const Value value(block[kZigzag[k]]);
    append_symbol(ac, static_cast<unsigned>(zeros) << 4 | value.num_bits, value);
    last = k;
  }
  if (last < kBlockSize - 1) append_symbol(ac, kEndOfBlock, none);
  if (missing) throw JpegError(Status::damaged, "a coefficient that the JPEG's Huffman tables have no code for");
  used_ = static_cast<std::size_t>(at - out_.data());
  buffer_ = buffer;
  count_ = count;
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
  for (; count_ >= 8; count_ -= 8) {
    const auto byte = static_cast<std::uint8_t>(buffer_ >> (count_ - 8));
    out_.data()[used_++] = byte;
    if (byte == kMarker) out_.data()[used_++] = 0;
  }
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
