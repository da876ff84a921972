// The tiles of a record, decoded one at a time.
#pragma once

#include <cstdint>

#include "planes/tile.hpp"

namespace dlio {

class TileReader {
 public:
  // Takes the quickest decoder. The record and its bytes must outlive it.
  explicit TileReader(const Record& record);

  std::size_t num_tiles() const noexcept { return record_->begins.size() - 1; }
  std::uint32_t num_mcus(std::size_t tile) const noexcept;

  // Returns the coefficients of a tile's blocks, valid until the next call; or nullptr where they are damaged.
  const std::int16_t* read(std::size_t tile) noexcept;

 private:
  struct Buffers {
    std::uint8_t padded[UINT16_MAX + 1 + kTilePadding];  // a tile that lies at the end of the record
    alignas(64) std::int16_t blocks[kMaxTileBlocks * kBlockSize];
  };
  static Buffers& of_this_thread();

  const Record* record_;
  std::uint32_t columns_, mcus_per_row_;
  DecodeTile decode_;
  Buffers* buffers_;
};

}  // namespace dlio
