// Rewriting a JPEG without loss so that windows can be cut out of it.
#pragma once

#include <cstdint>
#include <optional>

#include "jpeg/codec.hpp"

namespace dlio {

// Returns the restart interval in MCUs: the divisor of `mcus_per_row` that is nearest to 64 pixels, by ratio.
std::uint32_t preferred_interval(std::uint32_t mcus_per_row, std::uint32_t mcu_width) noexcept;

// Returns the same DCT coefficients as a baseline JPEG with restart intervals that tile the image and Huffman codes
// of its own, all APPn and COM segments kept, in the memory of `out`. Returns nothing where the JPEG must be kept as
// it is: already so, arithmetic, 12 bit, CMYK, damaged, incomplete, or a single interval.
// Throws JpegError only where memory is out.
std::optional<Bytes> make_crop_ready(Bytes jpeg, Scratch& out);

// Returns a progressive JPEG as a baseline one in the same way, without restart intervals; nothing for all others.
std::optional<Bytes> make_baseline(Bytes jpeg, Scratch& out);

}  // namespace dlio
