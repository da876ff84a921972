// libjpeg's entropy decoder, replaced by ours for a window of restart intervals.
#pragma once

#include <cstdint>

#include "huffman.hpp"
#include "window.hpp"

namespace dlio {

// To be called within ErrorTrap::run, instead of jpeg_start_decompress, on the opened JPEG of `window`.
//
// libjpeg-turbo reads a JPEG with restart intervals with its slow Huffman decoder, since any byte may begin a marker.
// In a window the intervals are known and free of stuffing: ours takes 14% off the whole time of a crop. (Two intervals
// side by side were slower than one after the other.) Off that of a JPEG without restarts it takes 15% too: its scan is
// one interval, which is copied without its stuffing first.
// libjpeg does the rest: it calls one function for each MCU, which is exchanged here. Damage ends the decode as with
// libjpeg, by its own warnings; so does a code that does not exist, which libjpeg's fast decoder takes for a zero. The
// window must live as long as the JPEG is open.
// Of the MCUs of a row only the first `num_columns` are decoded, where the others' interval ends with the row.
void start_decompress(jpeg_decompress_struct& jpeg, const Window& window, std::uint32_t num_columns);

// Whether the libjpeg that is loaded calls the function that start_decompress exchanges: a small JPEG is written and
// read both ways, once for the process. Where it does not, windows are decoded like any JPEG. To be called while no
// OpenJpeg of this thread is alive.
bool libjpeg_takes_our_decoder();

}  // namespace dlio
