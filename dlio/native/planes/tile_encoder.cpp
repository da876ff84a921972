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

// Some bits, at most 63.
struct BitRun {
  std::uint64_t bits;
  int count;

  void append(bool bit) noexcept { bits |= std::uint64_t{bit} << count++; }
};

class PlaneWriter {
 public:
  explicit PlaneWriter(std::vector<std::uint8_t>& out) noexcept : out_(out) {}

  void append(const BitRun& run) {
    buffer_ |= run.bits << count_;
    if (count_ + run.count < 64) {
      count_ += run.count;
      return;
    }
    std::uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(buffer_ >> 8 * i);
    out_.insert(out_.end(), bytes, bytes + sizeof bytes);
    const int taken = 64 - count_;
    buffer_ = taken < 64 ? run.bits >> taken : 0;
    count_ = run.count - taken;
  }
  void flush() {
    for (; count_ > 0; count_ -= 8, buffer_ >>= 8) out_.push_back(static_cast<std::uint8_t>(buffer_));
    count_ = 0;
  }

 private:
  std::vector<std::uint8_t>& out_;
  std::uint64_t buffer_ = 0;
  int count_ = 0;  // always less than 64
};

// The bits of a block, level by level.
struct CodedBlock {
  std::uint64_t mask;
  int zone;
  BitRun signs;
  BitRun raw[kLevels + 1];  // of level j: bit j - 1 of the magnitudes with more than j bits
  BitRun next[kLevels];     // of level j: which of them have more than j + 1
};

void split(const std::int16_t* block, int chroma, const Preset& preset, CodedBlock& coded) noexcept {
  coded = {};
  coded.mask = nonzeros(block);
  coded.zone = zone_of(coded.mask, preset.tables.zones[chroma]);
  for (std::uint64_t set = coded.mask; set != 0; set &= set - 1) {
    const int i = __builtin_ctzll(set);
    const int offset = preset.offsets[chroma][i];
    const auto magnitude = static_cast<unsigned>(std::abs(block[i]) + offset);
    coded.signs.append(block[i] < 0);
    if (offset == 0) coded.next[0].append(magnitude > 1);
    for (int level = 1; level <= kLevels && magnitude >> level != 0; ++level) {
      coded.raw[level].append((magnitude >> (level - 1) & 1) != 0);
      const bool goes_on = level < kLevels && (level > 1 || offset < 3);
      if (goes_on) coded.next[level].append(magnitude >> (level + 1) != 0);
    }
  }
}

void append_heads(const std::int16_t* blocks, const TileShape& shape, std::vector<std::uint8_t>& heads,
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

void append_levels(const CodedBlock* coded, int n, PlaneWriter& writer) {
  for (int i = 0; i < n; ++i) {
    writer.append(coded[i].signs);
    writer.append(coded[i].next[0]);
  }
  for (int level = 1; level < kLevels; ++level) {
    for (int i = 0; i < n; ++i) {
      writer.append(coded[i].raw[level]);
      writer.append(coded[i].next[level]);
    }
  }
  for (int i = 0; i < n; ++i) writer.append(coded[i].raw[kLevels]);
  writer.flush();
}

void append_bytes(const std::int16_t* block, int chroma, const Preset& preset, std::uint64_t mask,
                  std::vector<std::uint8_t>& out) {
  for (; mask != 0; mask &= mask - 1) {
    const int i = __builtin_ctzll(mask);
    const int high = (std::abs(block[i]) + preset.offsets[chroma][i]) >> kLevels;
    if (high > 0) out.push_back(static_cast<std::uint8_t>(high));
  }
}

}  // namespace

std::uint64_t nonzeros(const std::int16_t* block) noexcept {
  constexpr int kAtOnce = 4;
  std::uint64_t set = 0;
  for (int i = 0; i < kBlockSize; i += kAtOnce) {
    std::uint64_t some;
    std::memcpy(&some, block + i, sizeof some);
    if (some == 0) continue;
    for (int j = i; j < i + kAtOnce; ++j) set |= std::uint64_t{block[j] != 0} << j;
  }
  return set & ~std::uint64_t{1};
}

int zone_of(std::uint64_t set, const std::uint64_t (&zones)[kZones]) noexcept {
  int zone = 0;
  while ((set & ~zones[zone]) != 0) ++zone;  // the last one has them all
  return zone;
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

void encode_tile(const std::int16_t* blocks, const TileShape& shape, const Preset& preset,
                 std::vector<std::uint8_t>& out) {
  const int n = shape.num_blocks();
  CodedBlock coded[kMaxTileBlocks];
  std::int32_t smallest[kMaxComponents];
  int num_bits[kMaxComponents];
  append_heads(blocks, shape, out, smallest, num_bits);
  const auto component = [&](int i) { return shape.mcu->component[i % shape.mcu->num_blocks]; };
  PlaneWriter writer(out);
  for (int i = 0; i < n; ++i) {
    split(blocks + i * kBlockSize, component(i) > 0, preset, coded[i]);
    writer.append({static_cast<std::uint64_t>(coded[i].zone), 4});
  }
  writer.flush();
  for (int i = 0; i < n; ++i) {
    const int c = component(i);
    writer.append({static_cast<std::uint64_t>(blocks[i * kBlockSize] - smallest[c]), num_bits[c]});
  }
  for (int i = 0; i < n; ++i) {
    const int chroma = component(i) > 0;
    const std::uint64_t zone = preset.tables.zones[chroma][coded[i].zone];
    writer.append({extract(coded[i].mask, zone), preset.zone_sizes[chroma][coded[i].zone]});
  }
  append_levels(coded, n, writer);
  for (int i = 0; i < n; ++i) append_bytes(blocks + i * kBlockSize, component(i) > 0, preset, coded[i].mask, out);
}

int num_bits_of(const std::int16_t* block, int chroma, const Preset& preset) noexcept {
  const std::uint64_t mask = nonzeros(block);
  int num_bits = 4 + preset.zone_sizes[chroma][zone_of(mask, preset.tables.zones[chroma])];
  for (std::uint64_t set = mask; set != 0; set &= set - 1) {
    const int i = __builtin_ctzll(set);
    const int offset = preset.offsets[chroma][i];
    const auto magnitude = static_cast<unsigned>(std::abs(block[i]) + offset);
    const int size = 32 - __builtin_clz(magnitude);
    // The sign; whether it is larger than 1, than 3, and so on, where that is asked; raw bits.
    const int asked = std::min(size, kLevels) - (size >= 1 && offset >= 1) - (size >= 2 && offset >= 3);
    num_bits += 1 + asked + (size > kLevels ? kLevels + 8 : size - 1);
  }
  return num_bits;
}

}  // namespace dlio
