#include "pieces.hpp"

#include <cstring>

#include "crc32c/crc32c.hpp"

namespace dlio {

void extend_crcs(const Pieces& pieces, std::uint32_t* crcs) noexcept {
  for (std::size_t i = 0; i < pieces.count; ++i) crcs[i] = extend_crc(crcs[i], pieces.begin(i), pieces.size(i));
}

void place(const Pieces& pieces, const std::int64_t* offsets, char* out) noexcept {
  for (std::size_t i = 0; i < pieces.count; ++i) std::memcpy(out + offsets[i], pieces.begin(i), pieces.size(i));
}

}  // namespace dlio
