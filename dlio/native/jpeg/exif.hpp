// The orientation in an EXIF segment.
#pragma once

#include "jpeg/codec.hpp"

namespace dlio {

// Returns the orientation, 1 to 8 as EXIF counts them, from an APP1 segment's payload: a TIFF header and its first
// directory behind "Exif\0\0". Returns 1, "as stored", where it holds none or is damaged.
int orientation_of(Bytes payload) noexcept;

}  // namespace dlio
