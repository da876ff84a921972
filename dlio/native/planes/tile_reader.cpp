#include "planes/tile_reader.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace dlio {

TileReader::Buffers& TileReader::of_this_thread() {
  thread_local const std::unique_ptr<Buffers> buffers = std::make_unique<Buffers>();
  return *buffers;
}

TileReader::TileReader(const Record& record)
    : record_(&record),
      columns_(record.tiled().tile_columns()),
      mcus_per_row_(record.frame.mcus_per_row()),
      decode_(tile_decoder()),
      buffers_(&of_this_thread()) {}

std::uint32_t TileReader::num_mcus(std::size_t tile) const noexcept {
  const auto column = static_cast<std::uint32_t>(tile % columns_);
  return std::min(record_->tile_mcus, mcus_per_row_ - column * record_->tile_mcus);
}

const std::int16_t* TileReader::read(std::size_t tile) noexcept {
  const std::size_t begin = record_->begins[tile], end = record_->begins[tile + 1];
  TileBytes bytes{record_->tiles.data + begin, end - begin};
  if (record_->tiles.size - end < kTilePadding) {
    std::copy_n(bytes.data, bytes.size, buffers_->padded);
    std::fill_n(buffers_->padded + bytes.size, kTilePadding, std::uint8_t{0});
    bytes.data = buffers_->padded;
  }
  const TileShape shape{&record_->mcu, static_cast<int>(num_mcus(tile))};
  return decode_(bytes, shape, preset(record_->preset), buffers_->blocks) ? buffers_->blocks : nullptr;
}

}  // namespace dlio
