// Plain PNGs to pixels: 8 bits a channel, grey or RGB, not interlaced.
#pragma once

#include <optional>

#include "image.hpp"

namespace dlio {

// Returns all pixels of a plain PNG whose chunks come one after the other and are whole; nothing for any other, and for
// one that is damaged: every checksum is compared. Chunks other than header, pixels and end are passed over. Throws
// std::bad_alloc.
std::optional<Image> decode_png(Bytes png);

}  // namespace dlio
