// What an MCU of a frame consists of.
#pragma once

#include <cstdint>

#include "jpeg/scan.hpp"

namespace dlio {

constexpr int kMaxMcuBlocks = 6;  // of the samplings that are taken: 4:2:0 and 4:1:1 have the most
constexpr int kMaxComponents = 3;
constexpr std::uint32_t kMaxRunMcus = 16;  // whose blocks are handed on together

// The blocks of an MCU in the order of the scan.
struct Mcu {
  int num_components;
  int num_blocks;
  std::uint8_t component[kMaxMcuBlocks];  // of each block
  std::uint8_t horizontal, vertical;      // blocks of the first component; the others have one
};

// Finds out the MCU of a frame. Returns false where its sampling is none of 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 and grey,
// or its scan is not that of a baseline JPEG.
bool parse_mcu(Bytes jpeg, const Frame& frame, Mcu& mcu) noexcept;

}  // namespace dlio
