// From a JPEG to its decode-ready record, and back.
#pragma once

#include <cstdint>
#include <vector>

#include "image.hpp"
#include "memory.hpp"

namespace dlio {

// Writes the record of an 8 bit gray or YCbCr JPEG to `out`, from which the JPEG came back byte for byte; of a
// progressive one the record of the baseline JPEG of its coefficients. Returns false where there is none. Throws
// JpegError and std::bad_alloc only where memory is out.
bool to_planes(Bytes jpeg, std::vector<std::uint8_t>& out);

// Returns the JPEG of a record in the memory of `out`. Throws JpegError, std::bad_alloc.
Bytes from_planes(Bytes record, Scratch& out);

}  // namespace dlio
