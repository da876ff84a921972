// The decoder of tiles, to be included by one file for each back end, which names beforehand:
//   DLIO_KERNEL                the attribute of the functions that make it up
//   Bits                       a structure of deposit(bits, set), count(set), and whether that is slower than a branch
//                              that cannot be predicted, kIsSlow
//   write_block(planes, offsets, out)   what turns the planes of a block into its coefficients except for the first
//
// No bit must be read to know where the next one is: all positions are sums of the sizes of sets.
#include <algorithm>
#include <cstring>

#include "planes/tile.hpp"

namespace dlio {
namespace {

// Bits from the lowest of a byte on.
class PlaneReader {
 public:
  explicit PlaneReader(const std::uint8_t* data) noexcept : data_(data) {}

  // Returns the next kFew bits, and some more.
  static constexpr unsigned kFew = 57;
  DLIO_KERNEL std::uint64_t peek_few() const noexcept {
    std::uint64_t bits;
    std::memcpy(&bits, data_ + (position_ >> 3), sizeof bits);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    bits = __builtin_bswap64(bits);
#endif
    return bits >> (position_ & 7);
  }
  // Returns the next 64 bits.
  DLIO_KERNEL std::uint64_t peek() const noexcept {
    return peek_few() | std::uint64_t{data_[(position_ >> 3) + 8]} << 1 << (63 - (position_ & 7));
  }
  DLIO_KERNEL void drop(unsigned num_bits) noexcept { position_ += num_bits; }
  DLIO_KERNEL std::size_t position() const noexcept { return position_; }

 private:
  const std::uint8_t* data_;
  std::size_t position_ = 0;
};

struct TileState {
  std::uint64_t set[kMaxTileBlocks];  // coefficients of the level, in the end those that have a byte
  BlockPlanes planes[kMaxTileBlocks];
  std::int16_t dc[kMaxTileBlocks];
};

// Deposits as many bits as the set has coefficients.
DLIO_KERNEL inline std::uint64_t take(PlaneReader& reader, std::uint64_t set) noexcept {
  const unsigned count = Bits::count(set);
  const bool few = __builtin_expect(count <= PlaneReader::kFew, 1);
  const std::uint64_t bits = Bits::deposit(few ? reader.peek_few() : reader.peek(), set);
  reader.drop(count);
  return bits;
}

// Reads the offsets of the first coefficients. Returns false where one has too many bits.
DLIO_KERNEL inline bool read_dc(PlaneReader& reader, const std::uint8_t* heads, const TileShape& shape,
                                TileState& state) noexcept {
  std::int32_t smallest[kMaxComponents] = {};
  unsigned num_bits[kMaxComponents] = {};
  for (int c = 0; c < shape.mcu->num_components; ++c) {
    const std::int32_t head = heads[2 * c] | heads[2 * c + 1] << 8;
    smallest[c] = (head >> 4) + kMinDc;
    num_bits[c] = static_cast<unsigned>(head & 15);
    if (num_bits[c] > kMaxDcBits) return false;
  }
  for (int block = 0, mcu = 0; mcu < shape.num_mcus; ++mcu) {
    for (int i = 0; i < shape.mcu->num_blocks; ++i, ++block) {
      const int c = shape.mcu->component[i];
      const auto offset = static_cast<std::int32_t>(reader.peek_few() & ((1u << num_bits[c]) - 1));
      reader.drop(num_bits[c]);
      state.dc[block] = static_cast<std::int16_t>(smallest[c] + offset);
    }
  }
  return true;
}

DLIO_KERNEL inline void read_masks(PlaneReader& reader, const std::uint8_t* zones, const std::uint8_t* classes, int n,
                                   const Preset& preset, TileState& state) noexcept {
  for (int i = 0; i < n; ++i) {
    const unsigned zone = zones[i / 2] >> (i % 2 * 4) & 15u;
    state.planes[i].mask = Bits::deposit(reader.peek(), preset.tables.zones[classes[i]][zone]);
    reader.drop(preset.zone_sizes[classes[i]][zone]);
  }
}

struct SetBits {
  std::uint64_t raw;   // of the set
  std::uint64_t next;  // what continues to the next level
};

// Reads a bit of each coefficient of the set, and which of them continue: those in `all` do, and are not asked.
template <bool asks_all>
DLIO_KERNEL inline SetBits take_both(PlaneReader& reader, std::uint64_t set, std::uint64_t all) noexcept {
  const std::uint64_t asked = asks_all ? set : set & ~all;
  const unsigned num_raw = Bits::count(set), num_asked = asks_all ? num_raw : Bits::count(asked);
  // Both nearly always come with one reading.
  const bool few = __builtin_expect(num_raw + num_asked <= PlaneReader::kFew, 1);
  const std::uint64_t bits = few ? reader.peek_few() : reader.peek();
  const std::uint64_t raw = Bits::deposit(bits, set);
  reader.drop(num_raw);
  const std::uint64_t rest = few ? bits >> num_raw : reader.peek();
  reader.drop(num_asked);
  return {raw, Bits::deposit(rest, asked) | (asks_all ? 0 : set & all)};
}

DLIO_KERNEL inline void read_signs(PlaneReader& reader, const std::uint8_t* classes, int n, const Preset& preset,
                                   TileState& state) noexcept {
  for (int i = 0; i < n; ++i) {
    BlockPlanes& planes = state.planes[i];
    const SetBits bits = take_both<false>(reader, planes.mask, preset.tables.raw1[classes[i]]);
    planes.sign = bits.raw;
    state.set[i] = bits.next;
    planes.bit[0] = planes.mask & ~bits.next;
  }
}

// Reads the raw bits below the leading one, and what continues. Returns the union of that.
template <bool asks_all>
DLIO_KERNEL inline std::uint64_t read_level(PlaneReader& reader, int level, const std::uint8_t* classes, int n,
                                            const Preset& preset, TileState& state) noexcept {
  std::uint64_t any = 0;
  for (int i = 0; i < n; ++i) {
    BlockPlanes& planes = state.planes[i];
    const std::uint64_t set = state.set[i];
    if (Bits::kIsSlow && set == 0) {
      planes.bit[level] = 0;
      continue;
    }
    const SetBits bits = take_both<asks_all>(reader, set, preset.tables.raw2[classes[i]]);
    planes.bit[level - 1] |= bits.raw;
    planes.bit[level] = set & ~bits.next;
    state.set[i] = bits.next;
    any |= bits.next;
  }
  return any;
}

DLIO_KERNEL inline bool read_levels(PlaneReader& reader, const std::uint8_t* classes, int n, const Preset& preset,
                                    std::size_t num_bits, TileState& state) noexcept {
  std::uint64_t any = read_level<false>(reader, 1, classes, n, preset, state);
  for (int level = 2; level < kLevels; ++level) {
    if (reader.position() > num_bits) return false;
    if (any == 0) {
      for (int i = 0; i < n; ++i) state.planes[i].bit[level] = 0;
      continue;
    }
    any = read_level<true>(reader, level, classes, n, preset, state);
  }
  if (reader.position() > num_bits) return false;
  for (int i = 0; i < n && any != 0; ++i) state.planes[i].bit[kLevels - 1] |= take(reader, state.set[i]);
  return true;
}

// Adds the bytes of large magnitudes. Returns false where they do not end with the tile.
DLIO_KERNEL inline bool add_bytes(const std::uint8_t* at, const std::uint8_t* end, int n, const TileState& state,
                                  std::int16_t* out) noexcept {
  for (int i = 0; i < n; ++i, out += kBlockSize) {
    for (std::uint64_t set = state.set[i]; set != 0; set &= set - 1) {
      if (at >= end) return false;
      const int coefficient = __builtin_ctzll(set);
      const int high = *at++ << kLevels;
      const bool negative = (state.planes[i].sign >> coefficient & 1) != 0;
      out[coefficient] = static_cast<std::int16_t>(out[coefficient] + (negative ? -high : high));
    }
  }
  return at == end;
}

DLIO_KERNEL inline bool decode_tile_with_kernel(TileBytes tile, const TileShape& shape, const Preset& preset,
                                                std::int16_t* out) noexcept {
  const int n = shape.num_blocks();
  const std::size_t heads = 2 * static_cast<std::size_t>(shape.mcu->num_components);
  const std::size_t fixed = heads + (static_cast<std::size_t>(n) + 1) / 2;
  if (tile.size < fixed) return false;
  std::uint8_t classes[kMaxTileBlocks] = {};
  for (int block = 0; block < n; block += shape.mcu->num_blocks) {
    for (int i = 0; i < shape.mcu->num_blocks; ++i) classes[block + i] = shape.mcu->component[i] > 0;
  }
  TileState state;
  PlaneReader reader(tile.data + fixed);
  const std::size_t num_bits = 8 * (tile.size - fixed);
  if (!read_dc(reader, tile.data, shape, state)) return false;
  read_masks(reader, tile.data + heads, classes, n, preset, state);
  if (reader.position() > num_bits) return false;
  read_signs(reader, classes, n, preset, state);
  if (reader.position() > num_bits || !read_levels(reader, classes, n, preset, num_bits, state)) return false;
  for (int i = 0; i < n; ++i) write_block(state.planes[i], preset.offsets[classes[i]], out + i * kBlockSize);
  for (int i = 0; i < n; ++i) out[i * kBlockSize] = state.dc[i];
  if (reader.position() > num_bits) return false;
  return add_bytes(tile.data + fixed + (reader.position() + 7) / 8, tile.data + tile.size, n, state, out);
}

}  // namespace
}  // namespace dlio
