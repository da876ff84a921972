// The encoder of tiles, to be included by one file for each back end, which names beforehand:
//   DLIO_KERNEL                the attribute of the functions that make it up
//   SetBits                    a structure of extract(bits, set) and count(set)
//   magnitudes_of(block, offsets)   what parts a block, as CodedPlanes
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "planes/tile_encoder.hpp"

namespace dlio {
namespace {

// A tile has no more bytes for a block: a mask, signs, and for each of 63 coefficients 12 bits and a byte; with heads.
constexpr std::size_t kMaxBlockBytes = 256;

// Writes bits from the lowest of a byte on.
class PlaneWriter {
 public:
  explicit PlaneWriter(std::uint8_t* at) noexcept : at_(at) {}

  // Appends the lowest `count` bits, 63 at most; the others are zeros.
  DLIO_KERNEL void append(std::uint64_t bits, int count) noexcept {
    buffer_ |= bits << count_;
    if (count_ + count < 64) {
      count_ += count;
      return;
    }
    std::uint64_t word = buffer_;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    std::memcpy(at_, &word, sizeof word);
    at_ += sizeof word;
    const int taken = 64 - count_;
    buffer_ = taken < 64 ? bits >> taken : 0;
    count_ = count - taken;
  }
  DLIO_KERNEL void append_chosen(std::uint64_t bits, std::uint64_t set) noexcept {
    append(SetBits::extract(bits, set), SetBits::count(set));
  }
  // Fills up the last byte. Returns the end.
  DLIO_KERNEL std::uint8_t* flush() noexcept {
    for (; count_ > 0; count_ -= 8, buffer_ >>= 8) *at_++ = static_cast<std::uint8_t>(buffer_);
    count_ = 0;
    return at_;
  }

 private:
  std::uint8_t* at_;
  std::uint64_t buffer_ = 0;
  int count_ = 0;  // always less than 64
};

// The sets of a block: as those that a decoder goes through.
struct CodedBlock {
  CodedPlanes planes;
  std::uint64_t larger[kLevels + 1];  // magnitudes that have more bits than the level, from level 1 on
  std::uint64_t asked[kLevels];       // those of which the level says so
};

DLIO_KERNEL inline CodedBlock split(const std::int16_t* block, int chroma, const Preset& preset) noexcept {
  CodedBlock coded;
  coded.planes = magnitudes_of(block, preset.offsets[chroma]);
  coded.larger[kLevels] = coded.planes.large;
  for (int level = kLevels - 1; level > 0; --level) {
    coded.larger[level] = coded.larger[level + 1] | coded.planes.bit[level];
  }
  coded.asked[0] = coded.planes.mask & ~preset.tables.raw1[chroma];
  coded.asked[1] = coded.larger[1] & ~preset.tables.raw2[chroma];
  std::copy(coded.larger + 2, coded.larger + kLevels, coded.asked + 2);
  return coded;
}

// Returns the smallest zone that has all of a set; the last one has them all.
DLIO_KERNEL inline int zone_of(std::uint64_t set, const std::uint64_t (&zones)[kZones]) noexcept {
  int zone = 0;
  while ((set & ~zones[zone]) != 0) ++zone;
  return zone;
}

struct Heads {
  std::int32_t smallest[kMaxComponents];
  int num_bits[kMaxComponents];
};

DLIO_KERNEL inline std::uint8_t* append_heads(const std::int16_t* blocks, const TileShape& shape, std::uint8_t* at,
                                              Heads& heads) noexcept {
  std::int32_t largest[kMaxComponents];
  std::fill_n(heads.smallest, kMaxComponents, kMaxDc);
  std::fill_n(largest, kMaxComponents, kMinDc);
  for (int mcu = 0; mcu < shape.num_mcus; ++mcu) {
    for (int i = 0; i < shape.mcu->num_blocks; ++i, blocks += kBlockSize) {
      const int c = shape.mcu->component[i];
      heads.smallest[c] = std::min<std::int32_t>(heads.smallest[c], *blocks);
      largest[c] = std::max<std::int32_t>(largest[c], *blocks);
    }
  }
  for (int c = 0; c < shape.mcu->num_components; ++c) {
    heads.num_bits[c] = 0;
    while (largest[c] - heads.smallest[c] >= 1 << heads.num_bits[c]) ++heads.num_bits[c];
    const int head = (heads.smallest[c] - kMinDc) << 4 | heads.num_bits[c];
    *at++ = static_cast<std::uint8_t>(head);
    *at++ = static_cast<std::uint8_t>(head >> 8);
  }
  return at;
}

DLIO_KERNEL inline void append_levels(const CodedBlock* coded, int n, PlaneWriter& writer) noexcept {
  for (int i = 0; i < n; ++i) {
    writer.append_chosen(coded[i].planes.sign, coded[i].planes.mask);
    writer.append_chosen(coded[i].larger[1], coded[i].asked[0]);
  }
  for (int level = 1; level < kLevels; ++level) {
    for (int i = 0; i < n; ++i) {
      writer.append_chosen(coded[i].planes.bit[level - 1], coded[i].larger[level]);
      writer.append_chosen(coded[i].larger[level + 1], coded[i].asked[level]);
    }
  }
  for (int i = 0; i < n; ++i) writer.append_chosen(coded[i].planes.bit[kLevels - 1], coded[i].larger[kLevels]);
}

DLIO_KERNEL void encode_tile(const std::int16_t* blocks, const TileShape& shape, const Preset& preset,
                             std::vector<std::uint8_t>& out) {
  const int n = shape.num_blocks();
  CodedBlock coded[kMaxTileBlocks];
  std::uint8_t chroma[kMaxTileBlocks], zones[kMaxTileBlocks];
  std::uint8_t bytes[kMaxBlockBytes * kMaxTileBlocks];
  Heads heads;
  PlaneWriter zone_writer(append_heads(blocks, shape, bytes, heads));
  for (int i = 0; i < n; ++i) {
    chroma[i] = shape.mcu->component[i % shape.mcu->num_blocks] > 0;
    coded[i] = split(blocks + i * kBlockSize, chroma[i], preset);
    zones[i] = static_cast<std::uint8_t>(zone_of(coded[i].planes.mask, preset.tables.zones[chroma[i]]));
    zone_writer.append(zones[i], 4);
  }
  PlaneWriter writer(zone_writer.flush());
  for (int i = 0; i < n; ++i) {
    const int c = shape.mcu->component[i % shape.mcu->num_blocks];
    writer.append(static_cast<std::uint64_t>(blocks[i * kBlockSize] - heads.smallest[c]), heads.num_bits[c]);
  }
  for (int i = 0; i < n; ++i) writer.append_chosen(coded[i].planes.mask, preset.tables.zones[chroma[i]][zones[i]]);
  append_levels(coded, n, writer);
  std::uint8_t* at = writer.flush();
  for (int i = 0; i < n; ++i) {
    for (std::uint64_t set = coded[i].planes.large; set != 0; set &= set - 1) {
      const int j = __builtin_ctzll(set);
      *at++ =
          static_cast<std::uint8_t>((std::abs(blocks[i * kBlockSize + j]) + preset.offsets[chroma[i]][j]) >> kLevels);
    }
  }
  out.insert(out.end(), bytes, at);
}

DLIO_KERNEL int num_bits_of(const std::int16_t* block, int chroma, const Preset& preset) {
  const CodedBlock coded = split(block, chroma, preset);
  int num_bits = 4 + preset.zone_sizes[chroma][zone_of(coded.planes.mask, preset.tables.zones[chroma])];
  num_bits += SetBits::count(coded.planes.mask) + SetBits::count(coded.asked[0]);
  for (int level = 1; level < kLevels; ++level) {
    num_bits += SetBits::count(coded.larger[level]) + SetBits::count(coded.asked[level]);
  }
  return num_bits + 9 * SetBits::count(coded.larger[kLevels]);
}

}  // namespace
}  // namespace dlio
