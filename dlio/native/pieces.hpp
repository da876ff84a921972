// Values of bytes that lie one after another: checksums of many, and their copies at given offsets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

struct Pieces {
  const char* data;
  const std::int64_t* bounds;  // count + 1, ascending
  std::size_t count;

  const char* begin(std::size_t i) const noexcept { return data + bounds[i]; }
  std::size_t size(std::size_t i) const noexcept { return static_cast<std::size_t>(bounds[i + 1] - bounds[i]); }
};

// Extends each of the CRC-32Cs by the piece of its number.
void extend_crcs(const Pieces& pieces, std::uint32_t* crcs) noexcept;

// Copies each piece to its offset in `out`.
void place(const Pieces& pieces, const std::int64_t* offsets, char* out) noexcept;

}  // namespace dlio
