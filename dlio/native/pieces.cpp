#include "pieces.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected

std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) entry = (entry & 1) != 0 ? entry >> 1 ^ kPolynomial : entry >> 1;
    table[i] = entry;
  }
  return table;
}

std::uint32_t extend_by_table(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const std::array<std::uint32_t, 256> table = make_table();
  for (std::size_t i = 0; i < size; ++i) {
    state = table[(state ^ static_cast<std::uint8_t>(data[i])) & 0xff] ^ state >> 8;
  }
  return state;
}

#if defined(__x86_64__)
// An instruction begins with each cycle, and its result is there after three: so three parts of the bytes are summed up
// side by side. Where a part is followed by others, its state goes on as if that many zeros came; `kBlock` of them are
// four look-ups.
constexpr std::size_t kBlock = 1024;
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

std::uint32_t shifted(const Shift& shift, std::uint32_t state) noexcept {
  return shift[0][state & 0xff] ^ shift[1][state >> 8 & 0xff] ^ shift[2][state >> 16 & 0xff] ^ shift[3][state >> 24];
}

Shift make_shift() noexcept {
  const std::array<char, kBlock> zeros{};
  Shift shift{};
  for (std::uint32_t byte = 0; byte < shift.size(); ++byte) {
    for (std::uint32_t i = 0; i < 256; ++i) shift[byte][i] = extend_by_table(i << 8 * byte, zeros.data(), kBlock);
  }
  return shift;
}

std::uint64_t word_at(const char* data) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

DLIO_SSE42 std::uint32_t extend_by_instruction(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const Shift shift = make_shift();
  std::uint64_t first = state;
  for (; size >= 3 * kBlock; data += 3 * kBlock, size -= 3 * kBlock) {
    std::uint64_t second = 0, third = 0;
    for (const char* at = data; at < data + kBlock; at += sizeof first) {
      first = _mm_crc32_u64(first, word_at(at));
      second = _mm_crc32_u64(second, word_at(at + kBlock));
      third = _mm_crc32_u64(third, word_at(at + 2 * kBlock));
    }
    const std::uint32_t both = shifted(shift, static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    first = shifted(shift, both) ^ static_cast<std::uint32_t>(third);
  }
  for (; size >= sizeof first; data += sizeof first, size -= sizeof first) first = _mm_crc32_u64(first, word_at(data));
  state = static_cast<std::uint32_t>(first);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, static_cast<std::uint8_t>(*data));
  return state;
}
#endif

using Extend = std::uint32_t (*)(std::uint32_t, const char*, std::size_t) noexcept;

Extend fastest() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) return extend_by_instruction;
#endif
  return extend_by_table;
}

}  // namespace

std::uint32_t extend_crc(std::uint32_t crc, const char* data, std::size_t size) noexcept {
  static const Extend extend = fastest();
  return ~extend(~crc, data, size);
}

void extend_crcs(const Pieces& pieces, std::uint32_t* crcs) noexcept {
  for (std::size_t i = 0; i < pieces.count; ++i) crcs[i] = extend_crc(crcs[i], pieces.begin(i), pieces.size(i));
}

void place(const Pieces& pieces, const std::int64_t* offsets, char* out) noexcept {
  for (std::size_t i = 0; i < pieces.count; ++i) std::memcpy(out + offsets[i], pieces.begin(i), pieces.size(i));
}

}  // namespace dlio
