// Keeping libjpeg-turbo's fast Huffman decoder in use between restart markers.
#pragma once

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

namespace dlio {

// jpeg_start_decompress for a JPEG with restart intervals.
//
// libjpeg-turbo decodes every MCU with its slow Huffman decoder as soon as there is a restart interval, though only the
// first MCU of an interval has a marker to look for. So libjpeg is told of an interval for that MCU alone. To be called
// within ErrorTrap::run. Does just jpeg_start_decompress where there are no intervals, for several scans and for
// arithmetic coding, and where libjpeg's internal header is not installed.
void start_decompress(jpeg_decompress_struct& jpeg);

}  // namespace dlio
