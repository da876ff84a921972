#include "jpeg/huffman.hpp"

#include <algorithm>
#include <iterator>

#include "dispatch.hpp"

namespace dlio {
namespace {

// Where the coefficients of the zigzag lie; 15 more, as a damaged block may run that far behind its end.
constexpr std::uint8_t kNaturalOrder[DCTSIZE2 + 15] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

constexpr int kZeroRun = 15;  // without a value: 16 zeros; any shorter run without a value ends the block

Code code_of(std::uint8_t symbol, unsigned code_bits) noexcept {
  return {static_cast<std::uint16_t>(symbol << 8 | (code_bits + (symbol & 15u)))};
}

// Decodes the DC coefficient of a block. Returns whether its code was good.
inline bool decode_dc(BitReader& reader, const BlockTables& tables, JCOEF* block) noexcept {
  reader.refill();
  const Code code = tables.dc->next(reader);
  if (code.packed == 0) return false;
  if (code.value_bits() > 0) *tables.last_dc += static_cast<std::uint32_t>(reader.value(code));
  reader.drop(code);
  block[0] = static_cast<JCOEF>(*tables.last_dc);
  return true;
}

// Decodes the AC code that is next, at place `k` of the zigzag, and sets `k` behind it. Returns whether it was good.
inline bool decode_ac(BitReader& reader, const HuffmanTable& table, JCOEF* block, unsigned& k) noexcept {
  const Code code = table.next(reader);
  bool good = true;
  k += code.run();
  if (code.value_bits() > 0) {
    block[kNaturalOrder[k]] = static_cast<JCOEF>(reader.value(code));
  } else if (code.run() < kZeroRun) {
    good = code.packed != 0;
    k = DCTSIZE2;
  }
  reader.drop(code);
  ++k;
  return good;
}

// Decodes the AC coefficients of a block from place `k` of the zigzag on. Returns whether all codes were good.
inline bool decode_rest(BitReader& reader, const HuffmanTable& table, JCOEF* block, unsigned k) noexcept {
  bool good = true;
  while (k < DCTSIZE2) {
    reader.refill();
    good = decode_ac(reader, table, block, k);
    if (k < DCTSIZE2 && reader.has_code()) good = decode_ac(reader, table, block, k);
    if (k < DCTSIZE2 && reader.has_code()) good = decode_ac(reader, table, block, k);
  }
  return good;
}

// Decodes a block into `block`. Returns whether all codes were good.
inline bool decode_block(BitReader& reader, const BlockTables& tables, JCOEF* block) noexcept {
  return decode_dc(reader, tables, block) && decode_rest(reader, *tables.ac, block, 1);
}

// Decodes two blocks of one component, code by code in turns. Returns whether all codes were good.
inline bool decode_two(BitReader& reader, BitReader& other, const BlockTables& tables, const BlockTables& others,
                       JCOEF* block, JCOEF* other_block) noexcept {
  if (!decode_dc(reader, tables, block) || !decode_dc(other, others, other_block)) return false;
  const HuffmanTable& ac = *tables.ac;
  unsigned k = 1, l = 1;
  bool good = true;
  while (k < DCTSIZE2 && l < DCTSIZE2) {
    reader.refill();
    other.refill();
    good &= decode_ac(reader, ac, block, k);
    good &= decode_ac(other, ac, other_block, l);
    for (int i = 0; i < 2 && k < DCTSIZE2 && l < DCTSIZE2 && reader.has_code() && other.has_code(); ++i) {
      good &= decode_ac(reader, ac, block, k);
      good &= decode_ac(other, ac, other_block, l);
    }
  }
  return good && decode_rest(reader, ac, block, k) && decode_rest(other, ac, other_block, l);
}

}  // namespace

bool HuffmanTable::is_sound(const JHUFF_TBL& table, int largest_symbol) noexcept {
  std::uint32_t code = 0;  // of `length` bits
  int num_symbols = 0;
  for (unsigned length = 1; length <= 16; ++length, code <<= 1) {
    code += table.bits[length];
    num_symbols += table.bits[length];
    if (code >= 1u << length || num_symbols > 256) return false;
  }
  return std::all_of(table.huffval, table.huffval + num_symbols,
                     [=](std::uint8_t symbol) { return symbol <= largest_symbol; });
}

void HuffmanTable::build(const JHUFF_TBL& table) noexcept {
  std::fill(std::begin(codes_), std::end(codes_), Code{});
  std::copy_n(table.huffval, 256, symbols_);
  std::uint32_t code = 0;  // of `length` bits
  int index = 0;           // of its symbol
  for (unsigned length = 1; length <= 16; ++length, code <<= 1) {
    offset_[length] = index - static_cast<int>(code);
    for (int i = 0; i < table.bits[length]; ++i, ++code, ++index) {
      if (length > kLookahead) continue;
      const unsigned free_bits = kLookahead - length;
      std::fill_n(codes_ + (code << free_bits), 1u << free_bits, code_of(symbols_[index & 255], length));
    }
    limit_[length] = code << (16 - length);
  }
}

Code HuffmanTable::long_code(std::uint32_t bits) const noexcept {
  for (unsigned length = kLookahead + 1; length <= 16; ++length) {
    if (bits >= limit_[length]) continue;
    return code_of(symbols_[(static_cast<std::int32_t>(bits >> (16 - length)) + offset_[length]) & 255], length);
  }
  return {};
}

DLIO_FOR_BMI2_TOO
bool decode_blocks(BitReader& shared_reader, const BlockTables* tables, int num_blocks, JBLOCKROW* blocks) noexcept {
  BitReader reader = shared_reader;  // a copy stays in registers
  JBLOCK unwanted;
  for (int i = 0; i < num_blocks; ++i) {
    if (!decode_block(reader, tables[i], blocks == nullptr ? unwanted : *blocks[i])) return false;
  }
  shared_reader = reader;
  return true;
}

DLIO_FOR_BMI2_TOO
bool decode_two_mcus(BitReader (&shared)[2], const BlockTables (&tables)[2][kMaxMcuBlocks], int num_blocks,
                     JBLOCK* blocks, JBLOCK* others) noexcept {
  BitReader reader = shared[0], other = shared[1];
  for (int i = 0; i < num_blocks; ++i) {
    if (!decode_two(reader, other, tables[0][i], tables[1][i], blocks[i], others[i])) return false;
  }
  shared[0] = reader;
  shared[1] = other;
  return true;
}

}  // namespace dlio
