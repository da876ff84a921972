// CRC-32C by a processor's instruction for eight bytes.
//
// An instruction begins with each cycle, and its result is there after three: so three parts of the bytes are summed up
// side by side. Where a part is followed by others, its state continues as if that many zeros came; `kBlock` of them
// are four look-ups.
#pragma once

#include <array>
#include <cstring>

#include "crc32c/ways.hpp"
#include "dispatch.hpp"

namespace dlio {

constexpr std::size_t kBlock = 1024;
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

inline std::uint32_t shifted(const Shift& shift, std::uint32_t state) noexcept {
  return shift[0][state & 0xff] ^ shift[1][state >> 8 & 0xff] ^ shift[2][state >> 16 & 0xff] ^ shift[3][state >> 24];
}

inline Shift make_shift() noexcept {
  const std::array<char, kBlock> zeros{};
  Shift shift{};
  for (std::uint32_t byte = 0; byte < shift.size(); ++byte) {
    for (std::uint32_t i = 0; i < 256; ++i) shift[byte][i] = extend_by_table(i << 8 * byte, zeros.data(), kBlock);
  }
  return shift;
}

inline std::uint64_t word_at(const char* data) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Extends a state by `Instruction::word` and `Instruction::byte`.
template <class Instruction>
DLIO_SSE42 std::uint32_t extend_by_words(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const Shift shift = make_shift();
  for (; size >= 3 * kBlock; data += 3 * kBlock, size -= 3 * kBlock) {
    std::uint32_t second = 0, third = 0;
    for (const char* at = data; at < data + kBlock; at += sizeof(std::uint64_t)) {
      state = Instruction::word(state, word_at(at));
      second = Instruction::word(second, word_at(at + kBlock));
      third = Instruction::word(third, word_at(at + 2 * kBlock));
    }
    state = shifted(shift, shifted(shift, state) ^ second) ^ third;
  }
  for (; size >= sizeof(std::uint64_t); data += sizeof(std::uint64_t), size -= sizeof(std::uint64_t)) {
    state = Instruction::word(state, word_at(data));
  }
  for (; size > 0; ++data, --size) state = Instruction::byte(state, static_cast<std::uint8_t>(*data));
  return state;
}

}  // namespace dlio
