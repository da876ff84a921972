// The order of an epoch: permutations as functions of a key, as dlio.random_keys defines them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dlio {

using RoundKeys = std::array<std::uint64_t, 8>;

// Sets `out` to the places of `positions`, all below `size`, under a permutation of 0 to `size`; `size` is at least 2.
void permute(const std::int64_t* positions, std::size_t count, std::uint64_t size, const RoundKeys& keys,
             std::int64_t* out) noexcept;

}  // namespace dlio
