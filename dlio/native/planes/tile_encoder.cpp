// The encoder of tiles on any processor, and which one is used.
#include "planes/tile_encoder.hpp"

#include <algorithm>

#include "planes/coded_planes.hpp"

#define DLIO_KERNEL

namespace dlio {
namespace {

struct SetBits {
  // Returns the bits that `set` picks, side by side.
  static std::uint64_t extract(std::uint64_t bits, std::uint64_t set) noexcept {
    std::uint64_t extracted = 0;
    for (int at = 0; set != 0; set &= set - 1, ++at) extracted |= (bits >> __builtin_ctzll(set) & 1) << at;
    return extracted;
  }
  static int count(std::uint64_t set) noexcept { return __builtin_popcountll(set); }
};

CodedPlanes magnitudes_of(const std::int16_t* block, const std::uint8_t* offsets) noexcept {
  CodedPlanes planes{};
  for (int i = 1; i < kBlockSize; ++i) {
    if (block[i] == 0) continue;
    const bool negative = block[i] < 0;
    const auto magnitude = static_cast<unsigned>((negative ? -block[i] : block[i]) + offsets[i]);
    planes.mask |= std::uint64_t{1} << i;
    planes.sign |= std::uint64_t{negative} << i;
    planes.large |= std::uint64_t{magnitude >> kLevels != 0} << i;
    for (int level = 0; level < kLevels; ++level) {
      planes.bit[level] |= std::uint64_t{magnitude >> level & 1} << i;
    }
  }
  return planes;
}

}  // namespace
}  // namespace dlio

#include "planes/tile_encoder_kernel.hpp"

namespace dlio {

const TileEncoder kPortableEncoder{encode_tile, num_bits_of};

const TileEncoder& tile_encoder() noexcept {
#if defined(__x86_64__)
  if (deposits_quickly()) return kAvx2Encoder;
#endif
  return kPortableEncoder;
}

bool is_encodable(const std::int16_t* block) noexcept {
  constexpr int kLargestOffset = 3, kLargest = kMaxMagnitude - kLargestOffset;
  std::int16_t smallest = 0, largest = 0;
  for (int i = 1; i < kBlockSize; ++i) {
    smallest = std::min(smallest, block[i]);
    largest = std::max(largest, block[i]);
  }
  return block[0] >= kMinDc && block[0] <= kMaxDc && smallest >= -kLargest && largest <= kLargest;
}

}  // namespace dlio
