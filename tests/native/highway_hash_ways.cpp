// Hashes by all ways that this processor has; prints how many there are.
#include <cstdio>
#include <vector>

#include "highway_hash.hpp"
#include "processor.hpp"

int main() {
  using namespace dlio;
  const HighwayKey key{1, 2, 3, 4};
  std::vector<unsigned char> data(5000);
  std::uint32_t state = 1;
  for (unsigned char& byte : data) byte = static_cast<unsigned char>((state = state * 1664525 + 1013904223) >> 24);
  for (std::size_t size = 0; size < 200; ++size) {
    const unsigned char* const begin = data.data() + size % 67;
    use_back_end("portable");
    const std::uint64_t expected = highway_hash(key, begin, 20 * size);
    for (const BackEnd way : back_ends()) {
      use_back_end(name_of(way));
      if (highway_hash(key, begin, 20 * size) != expected) return std::printf("%zu bytes differ\n", 20 * size), 1;
    }
  }
  use_back_end("portable");
  std::vector<unsigned char> known(33);
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = static_cast<unsigned char>(128 + i);
  if (highway_hash(key, known.data(), known.size()) != 0x53c516cce478cad7) return std::puts("wrong"), 1;
  std::printf("%zu ways agree\n", back_ends().size());
}
