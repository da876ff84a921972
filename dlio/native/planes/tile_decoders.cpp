#include "planes/tile.hpp"

namespace dlio {

const std::vector<TileDecoder>& tile_decoders() {
  static const std::vector<TileDecoder> decoders{{"portable", decode_tile_on_any_processor}};
  return decoders;
}

}  // namespace dlio
