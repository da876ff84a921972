// The quantised coefficients of a JPEG, MCU by MCU.
#pragma once

#include <cstdint>

#include "jpeg/codec.hpp"
#include "planes/record.hpp"

namespace dlio {

// Reads the coefficients of an opened baseline JPEG of one scan: of each MCU its blocks in the order of the scan, in
// natural order each. Throws JpegError where it is damaged, std::bad_alloc.
const std::int16_t* read_coefficients(OpenJpeg& jpeg, const Frame& frame, const Mcu& mcu, Scratch& out);

}  // namespace dlio
