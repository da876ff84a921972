// Compares all ways to compute CRC-32C that this processor has with the table; prints how many there are.
#include <cstdio>
#include <vector>

#include "crc32c/ways.hpp"

int main() {
  using namespace dlio;
  std::vector<Extend> ways;
  for (const Extend way : ways_of_processor()) {
    if (way != nullptr) ways.push_back(way);
  }
  std::vector<char> data(70'000);
  std::uint32_t state = 1;
  for (char& byte : data) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  std::vector<std::size_t> sizes{4096, 9999, 65'536};
  for (std::size_t size = 0; size < 1000; ++size) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    const char* const begin = data.data() + size % 67;
    const std::uint32_t expected = extend_by_table(0x12345678, begin, size);
    for (const Extend way : ways) {
      if (way(0x12345678, begin, size) != expected) return std::printf("%zu bytes differ\n", size), 1;
    }
  }
  std::printf("%zu ways agree\n", ways.size());
}
