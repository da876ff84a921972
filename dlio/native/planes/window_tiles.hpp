// libjpeg's entropy decoder, replaced by that of a record's tiles.
#pragma once

#include <cstdint>

#include "jpeg/window_decoder.hpp"
#include "planes/record.hpp"
#include "resize/request.hpp"

namespace dlio {

// As start_decompress, on the opened header of `region` alone, which consists of whole tiles of the record. Of each row
// only the MCUs of the first `num_pixels` are decoded, and of rows that libjpeg skips none. The record must live as
// long as the JPEG is open. Damage ends the decode.
void start_tiles(jpeg_decompress_struct& jpeg, const Record& record, const Box& region, std::uint32_t num_pixels);

}  // namespace dlio
