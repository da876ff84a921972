#include "jpeg/mcu.hpp"

#include <algorithm>

namespace dlio {

// SOF: marker, length, precision, height, width, number, then of each component identifier, sampling, table. SOS:
// marker, length, number, then of each component identifier, tables; then the band 0 to 63, and 0 (T.81, B.2.2, B.2.3).
bool parse_mcu(Bytes jpeg, const Frame& frame, Mcu& mcu) noexcept {
  const std::uint8_t* const sof = jpeg.data + frame.header;
  mcu.num_components = sof[9];
  const std::size_t sos_size = 8 + 2 * static_cast<std::size_t>(mcu.num_components);
  if (frame.scan < sos_size) return false;
  const std::uint8_t* const sos = jpeg.data + frame.scan - sos_size;
  if (sos[0] != 0xFF || sos[1] != 0xDA || sos[4] != mcu.num_components) return false;
  for (int i = 0; i < mcu.num_components; ++i) {
    if (sos[5 + 2 * i] != sof[10 + 3 * i]) return false;
  }
  const std::uint8_t* const band = sos + sos_size - 3;
  if (band[0] != 0 || band[1] != 63 || band[2] != 0) return false;
  mcu.horizontal = mcu.num_components == 1 ? 1 : sof[11] >> 4;
  mcu.vertical = mcu.num_components == 1 ? 1 : sof[11] & 15;
  const int luma = mcu.horizontal * mcu.vertical;
  if (luma < 1 || luma > 4 || mcu.horizontal == 3 || mcu.vertical > 2) return false;
  if (mcu.num_components == 3 && (sof[14] != 0x11 || sof[17] != 0x11)) return false;
  mcu.num_blocks = luma + mcu.num_components - 1;
  for (int i = 0; i < mcu.num_blocks; ++i) mcu.component[i] = static_cast<std::uint8_t>(std::max(0, i - luma + 1));
  return true;
}

}  // namespace dlio
