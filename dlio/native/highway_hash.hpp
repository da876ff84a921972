// HighwayHash, a keyed hash of 64 bits (https://github.com/google/highwayhash), with which Riegeli checks its data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dlio {

using HighwayKey = std::array<std::uint64_t, 4>;

std::uint64_t highway_hash(const HighwayKey& key, const unsigned char* data, std::size_t size) noexcept;

}  // namespace dlio
