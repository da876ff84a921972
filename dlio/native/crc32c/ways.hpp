// The ways to compute CRC-32C: by a table on any processor, and by what a processor has for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dlio {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected

// Returns the state, which is the checksum's complement, extended by `size` bytes.
using Extend = std::uint32_t (*)(std::uint32_t state, const char* data, std::size_t size) noexcept;

std::uint32_t extend_by_table(std::uint32_t state, const char* data, std::size_t size) noexcept;

// Returns what this processor has, the quickest first, and null for the rest.
std::array<Extend, 2> ways_of_processor() noexcept;

}  // namespace dlio
