#include "crc32c/crc32c.hpp"

#include "crc32c/ways.hpp"

namespace dlio {
namespace {

std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) entry = (entry & 1) != 0 ? entry >> 1 ^ kPolynomial : entry >> 1;
    table[i] = entry;
  }
  return table;
}

Extend quickest() noexcept {
  const Extend way = ways_of_processor().front();
  return way != nullptr ? way : extend_by_table;
}

}  // namespace

std::uint32_t extend_by_table(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const std::array<std::uint32_t, 256> table = make_table();
  for (std::size_t i = 0; i < size; ++i) {
    state = table[(state ^ static_cast<std::uint8_t>(data[i])) & 0xff] ^ state >> 8;
  }
  return state;
}

std::uint32_t extend_crc(std::uint32_t crc, const char* data, std::size_t size) noexcept {
  static const Extend extend = quickest();
  return ~extend(~crc, data, size);
}

}  // namespace dlio
