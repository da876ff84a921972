// Plain PNGs to pixels: 8 bits a channel, grey or RGB, not interlaced; and zlib streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "image.hpp"

namespace dlio {

// Writes the content of a zlib stream, at most `size` bytes, and returns how many; nothing if the stream is damaged,
// cut off or longer. Throws std::bad_alloc.
std::optional<std::size_t> inflate(Bytes zlib, std::uint8_t* out, std::size_t size);

// Returns all pixels of a plain PNG whose chunks come one after the other and are whole; nothing for any other, and for
// one that is damaged: every checksum is compared. Chunks other than header, pixels and end are passed over. Throws
// std::bad_alloc.
std::optional<Image> decode_png(Bytes png);

}  // namespace dlio
