// Writing tiles, and what their blocks cost.
#pragma once

#include <cstdint>
#include <vector>

#include "planes/tile.hpp"

namespace dlio {

// Appends a tile of such blocks to `out`; they have passed is_encodable.
void encode_tile(const std::int16_t* blocks, const TileShape& shape, const Preset& preset,
                 std::vector<std::uint8_t>& out);

// Returns how many bits of a tile a block has, but for its first coefficient.
int num_bits_of(const std::int16_t* block, int chroma, const Preset& preset) noexcept;

// Whether coefficients are within what a tile can hold.
bool is_encodable(const std::int16_t* block) noexcept;

// Returns the set of coefficients that are not zero, but for the first.
std::uint64_t nonzeros(const std::int16_t* block) noexcept;

// Returns the smallest zone that has all of a set.
int zone_of(std::uint64_t set, const std::uint64_t (&zones)[kZones]) noexcept;

}  // namespace dlio
