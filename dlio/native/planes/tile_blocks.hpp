// The blocks of a region of a record.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planes/tile_reader.hpp"
#include "resize/request.hpp"

namespace dlio {

// A source of PictureRows: only tiles with MCUs that are wanted are read.
class TileBlocks {
 public:
  // `region` consists of whole tiles. The record must outlive the source.
  TileBlocks(const Record& record, const Box& region);

  void skip(std::size_t num_mcus) noexcept { next_ += num_mcus; }
  const std::int16_t* read(std::uint32_t& num_mcus);

 private:
  const Record& record_;
  TileReader reader_;
  std::size_t first_tile_, tiles_per_row_, mcus_per_row_;
  std::size_t next_ = 0;  // the MCU that is wanted
};

}  // namespace dlio
