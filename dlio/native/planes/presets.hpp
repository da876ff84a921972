// The tables that tiles are coded by. A preset never changes once a release has it: records name it by number.
#pragma once

#include <cstdint>

namespace dlio {

constexpr int kZones = 16;
constexpr int kClasses = 2;  // luma, chroma

// Sets of coefficients: bit i is coefficient i of a block in natural order, 8 v + u. None has the DC coefficient.
struct PresetTables {
  std::uint64_t zones[kClasses][kZones];  // ascending by their numbers of coefficients; the last one has all 63
  std::uint64_t raw1[kClasses];           // coefficients whose magnitudes have one raw bit at least
  std::uint64_t raw2[kClasses];           // two; a part of raw1
};

struct Preset {
  constexpr explicit Preset(const PresetTables& from) noexcept : tables(from) {
    for (int c = 0; c < kClasses; ++c) {
      for (int i = 0; i < kZones; ++i) zone_sizes[c][i] = count(from.zones[c][i]);
      for (int i = 0; i < 64; ++i) {
        offsets[c][i] = static_cast<std::uint8_t>((from.raw1[c] >> i & 1) + 2 * (from.raw2[c] >> i & 1));
      }
    }
  }

  static constexpr std::uint8_t count(std::uint64_t set) noexcept {
    std::uint8_t size = 0;
    for (; set != 0; set &= set - 1) ++size;
    return size;
  }

  PresetTables tables;
  std::uint8_t zone_sizes[kClasses][kZones]{};
  alignas(64) std::uint8_t offsets[kClasses][64]{};  // what is added to a magnitude before it is coded: 0, 1 or 3
};

int num_presets() noexcept;
const Preset& preset(int number) noexcept;

}  // namespace dlio
