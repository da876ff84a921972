// Writing tiles, and what their blocks cost.
#pragma once

#include <cstdint>
#include <vector>

#include "planes/tile.hpp"

namespace dlio {

// What the back ends have each; they make the same bytes.
struct TileEncoder {
  // Appends a tile of such blocks to `out`; they have passed is_encodable.
  void (*encode)(const std::int16_t* blocks, const TileShape& shape, const Preset& preset,
                 std::vector<std::uint8_t>& out);

  // Returns how many bits of a tile a block has, except for its first coefficient.
  int (*num_bits_of)(const std::int16_t* block, int chroma, const Preset& preset);
};

extern const TileEncoder kPortableEncoder;
#if defined(__x86_64__)
extern const TileEncoder kAvx2Encoder;  // needs BMI2 too
#endif

// Returns the quickest one that the back end in use has.
const TileEncoder& tile_encoder() noexcept;

// Whether coefficients are within what a tile can hold.
bool is_encodable(const std::int16_t* block) noexcept;

}  // namespace dlio
