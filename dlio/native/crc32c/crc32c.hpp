// Castagnoli's checksum, by the quickest way that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

// Returns a CRC-32C extended by `size` bytes.
std::uint32_t extend_crc(std::uint32_t crc, const char* data, std::size_t size) noexcept;

}  // namespace dlio
