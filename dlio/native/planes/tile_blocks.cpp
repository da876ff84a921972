#include "planes/tile_blocks.hpp"

#include <algorithm>

namespace dlio {

TileBlocks::TileBlocks(const Record& record, const Box& region) : record_(record), reader_(record) {
  const Frame tiled = record.tiled();
  tiles_per_row_ = tiled.tile_columns();
  first_tile_ = region.top / tiled.tile_height() * tiles_per_row_ + region.left / tiled.tile_width();
  mcus_per_row_ = (region.width + tiled.mcu_width - 1) / tiled.mcu_width;
}

// A row of MCUs begins with a tile.
const std::int16_t* TileBlocks::read(std::uint32_t& num_mcus) {
  const std::size_t row = next_ / mcus_per_row_, column = next_ % mcus_per_row_;
  const std::size_t tile = first_tile_ + row * tiles_per_row_ + column / record_.tile_mcus;
  const auto within = static_cast<std::uint32_t>(column % record_.tile_mcus);
  const std::int16_t* const blocks = reader_.read(tile);
  if (blocks == nullptr) {
    throw JpegError(Status::damaged, "decode-ready record: a tile does not end where its size says");
  }
  num_mcus = std::min(num_mcus, reader_.num_mcus(tile) - within);
  next_ += num_mcus;
  return blocks + static_cast<std::ptrdiff_t>(within) * record_.mcu.num_blocks * kBlockSize;
}

}  // namespace dlio
