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
DLIO_SSE42 std::uint32_t extend_by_instruction(std::uint32_t state, const char* data, std::size_t size) noexcept {
  std::uint64_t wide = state;
  for (; size >= sizeof wide; data += sizeof wide, size -= sizeof wide) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  state = static_cast<std::uint32_t>(wide);
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

void extend_crcs(const Pieces& pieces, std::uint32_t* crcs) noexcept {
  static const Extend extend = fastest();
  for (std::size_t i = 0; i < pieces.count; ++i) crcs[i] = ~extend(~crcs[i], pieces.begin(i), pieces.size(i));
}

void place(const Pieces& pieces, const std::int64_t* offsets, char* out) noexcept {
  for (std::size_t i = 0; i < pieces.count; ++i) std::memcpy(out + offsets[i], pieces.begin(i), pieces.size(i));
}

}  // namespace dlio
