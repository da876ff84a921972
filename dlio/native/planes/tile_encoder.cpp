#include "planes/tile_encoder.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace dlio {
namespace {

// Returns the bits that `set` picks, side by side.
std::uint64_t extract(std::uint64_t bits, std::uint64_t set) noexcept {
  std::uint64_t extracted = 0;
  for (int at = 0; set != 0; set &= set - 1, ++at) extracted |= (bits >> __builtin_ctzll(set) & 1) << at;
  return extracted;
}

class PlaneWriter {
 public:
  explicit PlaneWriter(std::vector<std::uint8_t>& out) noexcept : out_(out) {}

  void append(std::uint64_t bits, int num_bits) {
    buffer_ |= bits << count_;
    if (count_ + num_bits < 64) {
      count_ += num_bits;
      return;
    }
    const int taken = 64 - count_;
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<std::uint8_t>(buffer_ >> 8 * i));
    buffer_ = taken < 64 ? bits >> taken : 0;
    count_ = num_bits - taken;
  }
  void append_of(std::uint64_t bits, std::uint64_t set) { append(extract(bits, set), __builtin_popcountll(set)); }
  void flush() {
    for (; count_ > 0; count_ -= 8, buffer_ >>= 8) out_.push_back(static_cast<std::uint8_t>(buffer_));
    count_ = 0;
  }

 private:
  std::vector<std::uint8_t>& out_;
  std::uint64_t buffer_ = 0;
  int count_ = 0;  // always less than 64
};

// A block as its planes, and which coefficients reach each level.
struct CodedBlock {
  BlockPlanes planes;
  std::uint64_t reaches[kLevels + 1];  // those of level j have a size of more than j bits
  int chroma;
};

void split(const std::int16_t* block, const Preset& preset, CodedBlock& coded) noexcept {
  std::fill(std::begin(coded.planes.bit), std::end(coded.planes.bit), 0);
  std::fill(std::begin(coded.reaches), std::end(coded.reaches), 0);
  coded.planes.sign = 0;
  coded.planes.mask = nonzeros(block);
  for (std::uint64_t set = coded.planes.mask; set != 0; set &= set - 1) {
    const int i = __builtin_ctzll(set);
    const std::uint64_t bit = set & (0 - set);
    const auto magnitude = static_cast<unsigned>(std::abs(block[i]) + preset.offsets[coded.chroma][i]);
    if (block[i] < 0) coded.planes.sign |= bit;
    for (int level = 0; level <= kLevels && magnitude >> level != 0; ++level) coded.reaches[level] |= bit;
    for (int level = 0; level < kLevels; ++level) {
      if ((magnitude >> level & 1) != 0) coded.planes.bit[level] |= bit;
    }
  }
}

void append_dc(const std::int16_t* blocks, const TileShape& shape, std::vector<std::uint8_t>& heads,
               std::int32_t (&smallest)[kMaxComponents], int (&num_bits)[kMaxComponents]) {
  std::int32_t largest[kMaxComponents];
  std::fill_n(smallest, kMaxComponents, kMaxDc);
  std::fill_n(largest, kMaxComponents, kMinDc);
  for (int block = 0; block < shape.num_blocks(); ++block) {
    const int c = shape.mcu->component[block % shape.mcu->num_blocks];
    smallest[c] = std::min<std::int32_t>(smallest[c], blocks[block * kBlockSize]);
    largest[c] = std::max<std::int32_t>(largest[c], blocks[block * kBlockSize]);
  }
  for (int c = 0; c < shape.mcu->num_components; ++c) {
    num_bits[c] = 0;
    while (largest[c] - smallest[c] >= 1 << num_bits[c]) ++num_bits[c];
    const int head = (smallest[c] - kMinDc) << 4 | num_bits[c];
    heads.push_back(static_cast<std::uint8_t>(head));
    heads.push_back(static_cast<std::uint8_t>(head >> 8));
  }
}

void append_levels(const std::vector<CodedBlock>& coded, const Preset& preset, PlaneWriter& writer) {
  for (const CodedBlock& block : coded) {
    writer.append_of(block.planes.sign, block.planes.mask);
    writer.append_of(block.reaches[1], block.planes.mask & ~preset.tables.raw1[block.chroma]);
  }
  for (int level = 1; level < kLevels; ++level) {
    for (const CodedBlock& block : coded) {
      writer.append_of(block.planes.bit[level - 1], block.reaches[level]);
      const std::uint64_t all = level == 1 ? preset.tables.raw2[block.chroma] : 0;
      writer.append_of(block.reaches[level + 1], block.reaches[level] & ~all);
    }
  }
  for (const CodedBlock& block : coded) writer.append_of(block.planes.bit[kLevels - 1], block.reaches[kLevels]);
  writer.flush();
}

}  // namespace

std::uint64_t nonzeros(const std::int16_t* block) noexcept {
  std::uint64_t set = 0;
  for (int i = 1; i < kBlockSize; ++i) set |= std::uint64_t{block[i] != 0} << i;
  return set;
}

int zone_of(std::uint64_t set, const std::uint64_t (&zones)[kZones]) noexcept {
  int zone = 0;
  while ((set & ~zones[zone]) != 0) ++zone;  // the last one has them all
  return zone;
}

bool is_encodable(const std::int16_t* block) noexcept {
  constexpr int kLargestOffset = 3, kLargest = kMaxMagnitude - kLargestOffset;
  const auto [smallest, largest] = std::minmax_element(block + 1, block + kBlockSize);
  return block[0] >= kMinDc && block[0] <= kMaxDc && *smallest >= -kLargest && *largest <= kLargest;
}

void encode_tile(const std::int16_t* blocks, const TileShape& shape, const Preset& preset,
                 std::vector<std::uint8_t>& out) {
  const int n = shape.num_blocks();
  std::int32_t smallest[kMaxComponents];
  int num_bits[kMaxComponents];
  append_dc(blocks, shape, out, smallest, num_bits);
  std::vector<CodedBlock> coded(static_cast<std::size_t>(n));
  PlaneWriter zones(out);
  for (int i = 0; i < n; ++i) {
    CodedBlock& block = coded[static_cast<std::size_t>(i)];
    block.chroma = shape.mcu->component[i % shape.mcu->num_blocks] > 0;
    split(blocks + i * kBlockSize, preset, block);
    zones.append(static_cast<std::uint64_t>(zone_of(block.planes.mask, preset.tables.zones[block.chroma])), 4);
  }
  zones.flush();
  PlaneWriter writer(out);
  for (int i = 0; i < n; ++i) {
    const int c = shape.mcu->component[i % shape.mcu->num_blocks];
    writer.append(static_cast<std::uint64_t>(blocks[i * kBlockSize] - smallest[c]), num_bits[c]);
  }
  for (const CodedBlock& block : coded) {
    const std::uint64_t (&sets)[kZones] = preset.tables.zones[block.chroma];
    writer.append_of(block.planes.mask, sets[zone_of(block.planes.mask, sets)]);
  }
  append_levels(coded, preset, writer);
  for (int i = 0; i < n; ++i) {
    const CodedBlock& block = coded[static_cast<std::size_t>(i)];
    for (std::uint64_t set = block.reaches[kLevels]; set != 0; set &= set - 1) {
      const int at = __builtin_ctzll(set);
      const int magnitude = std::abs(blocks[i * kBlockSize + at]) + preset.offsets[block.chroma][at];
      out.push_back(static_cast<std::uint8_t>(magnitude >> kLevels));
    }
  }
}

}  // namespace dlio
