// The Huffman tables of ITU-T T.81, K.3, as libjpeg writes them: a DHT segment each, those of luma first.
#pragma once

#include "image.hpp"

namespace dlio {

// Returns the segments that a JPEG of 1 or 3 components has.
Bytes standard_tables(int num_components) noexcept;

}  // namespace dlio
