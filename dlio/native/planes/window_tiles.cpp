#include "planes/window_tiles.hpp"

#include <cstring>
#include <limits>
#include <optional>

#include "planes/tile_reader.hpp"

namespace dlio {
namespace {

constexpr std::size_t kNoTile = std::numeric_limits<std::size_t>::max();

struct TilesDecoder {
  std::optional<TileReader> reader;
  const std::int16_t* blocks;  // of the tile
  std::size_t tile;            // that is decoded
  std::size_t first_tile;      // of the row
  std::size_t tiles_per_row;   // of the image
  std::uint32_t tile_mcus;
  std::uint32_t mcus_per_row;  // of the region
  std::uint32_t num_columns;   // MCUs of a row to decode
  std::uint32_t column;

  static TilesDecoder& of_this_thread() noexcept {
    thread_local TilesDecoder decoder;
    return decoder;
  }
};

boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW* out) {
  TilesDecoder& decoder = TilesDecoder::of_this_thread();
  const std::uint32_t column = decoder.column++;
  const std::size_t tile = decoder.first_tile + column / decoder.tile_mcus;
  if (decoder.column == decoder.mcus_per_row) {
    decoder.column = 0;
    decoder.first_tile += decoder.tiles_per_row;
  }
  if (out == nullptr || column >= decoder.num_columns) return TRUE;
  if (tile != decoder.tile) {
    decoder.blocks = decoder.reader->read(tile);
    decoder.tile = tile;
    if (decoder.blocks == nullptr) {
      ErrorTrap::fail(reinterpret_cast<j_common_ptr>(jpeg), Status::damaged,
                      "decode-ready record: a tile does not end where its size says");
    }
  }
  const std::int16_t* block = decoder.blocks;
  block +=
      static_cast<std::size_t>(column % decoder.tile_mcus) * static_cast<std::size_t>(jpeg->blocks_in_MCU) * kBlockSize;
  for (int i = 0; i < jpeg->blocks_in_MCU; ++i, block += kBlockSize) std::memcpy(out[i], block, sizeof(JBLOCK));
  return TRUE;
}

}  // namespace

void start_tiles(jpeg_decompress_struct& jpeg, const Record& record, const Box& region, std::uint32_t num_pixels) {
  jpeg_start_decompress(&jpeg);
  const Frame tiled = record.tiled();
  TilesDecoder& decoder = TilesDecoder::of_this_thread();
  const std::uint32_t mcus_per_row = (region.width + tiled.mcu_width - 1) / tiled.mcu_width;
  if (jpeg.blocks_in_MCU != record.mcu.num_blocks || jpeg.MCUs_per_row != mcus_per_row) {
    ErrorTrap::fail(reinterpret_cast<j_common_ptr>(&jpeg), Status::broken,
                    "decode-ready record: its header has another sampling");
  }
  decoder.reader.emplace(record);
  decoder.tile = kNoTile;
  decoder.tiles_per_row = tiled.tile_columns();
  decoder.first_tile = region.top / tiled.tile_height() * decoder.tiles_per_row + region.left / tiled.tile_width();
  decoder.tile_mcus = record.tile_mcus;
  decoder.mcus_per_row = mcus_per_row;
  decoder.num_columns = (num_pixels + tiled.mcu_width - 1) / tiled.mcu_width;
  decoder.column = 0;
  exchange_decoder(jpeg, decode_mcu);
}

}  // namespace dlio
