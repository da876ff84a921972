// libjpeg's entropy decoder, replaced by ours for a window of restart intervals.
#pragma once

#include <cstdint>

#include "jpeg/huffman.hpp"
#include "jpeg/window.hpp"

namespace dlio {

// Call it within ErrorTrap::run, instead of jpeg_start_decompress, on the opened JPEG of `window`, which must live as
// long as the JPEG is open. Of each row only the first `num_columns` MCUs are decoded, if the interval of the others
// ends with the row.
//
// libjpeg-turbo reads a JPEG with restart intervals with its slow Huffman decoder, since any byte may begin a marker.
// In a window the intervals are known and free of stuffing: our decoder takes 14% off the whole time of a crop, and 15%
// off that of a JPEG without restarts, whose scan is one interval. libjpeg does the rest. Damage ends the decode with
// libjpeg's own warnings; so does a code that does not exist, which libjpeg's fast decoder takes for a zero.
//
// It serves the pictures that have no PictureFormat, and back ends without pixel kernels: of the others ScanBlocks
// reads two intervals at once.
void start_decompress(jpeg_decompress_struct& jpeg, const Window& window, std::uint32_t num_columns);

// Has libjpeg call this function for each MCU of a JPEG that jpeg_start_decompress has started; the blocks are zeros,
// or null where libjpeg skips the MCU. Only where libjpeg_takes_our_decoder.
using DecodeMcu = boolean (*)(j_decompress_ptr jpeg, JBLOCKROW* blocks);
void exchange_decoder(jpeg_decompress_struct& jpeg, DecodeMcu decode_mcu) noexcept;

// Returns whether the libjpeg that is loaded calls the function that start_decompress exchanges: a small JPEG is
// written and read both ways, once for the process. Call it while no OpenJpeg of this thread is alive.
bool libjpeg_takes_our_decoder();

}  // namespace dlio
