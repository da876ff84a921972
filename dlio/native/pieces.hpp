// Values of bytes that lie one behind the other: checksums of many, and records of several columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

struct Column {
  Pieces pieces;
  std::size_t multiple;  // zeros follow each piece until the record has a multiple of so many bytes
};

// Writes, for each row, the pieces of all columns to `out`, if it is not null; returns the number of bytes.
std::size_t interleave(const std::vector<Column>& columns, char* out) noexcept;

}  // namespace dlio
