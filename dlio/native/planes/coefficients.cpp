#include "planes/coefficients.hpp"

#include <cstring>

#include "planes/tile.hpp"

namespace dlio {
namespace {

// Copies the blocks of a component in a row of MCUs. `rows` are as many rows of blocks as an MCU has of it.
void copy_blocks(JBLOCKARRAY rows, int horizontal, int vertical, std::uint32_t num_mcus, std::size_t mcu_step,
                 std::int16_t* out) noexcept {
  for (std::uint32_t mcu = 0; mcu < num_mcus; ++mcu, out += mcu_step) {
    std::int16_t* to = out;
    for (int y = 0; y < vertical; ++y) {
      for (int x = 0; x < horizontal; ++x, to += kBlockSize) {
        std::memcpy(to, rows[y][mcu * static_cast<std::uint32_t>(horizontal) + static_cast<std::uint32_t>(x)],
                    sizeof(JBLOCK));
      }
    }
  }
}

}  // namespace

const std::int16_t* read_coefficients(OpenJpeg& jpeg, const Frame& frame, const Mcu& mcu, Scratch& out) {
  const std::uint32_t per_row = frame.mcus_per_row();
  const std::uint32_t num_rows = (frame.height + frame.mcu_height - 1) / frame.mcu_height;
  const std::size_t mcu_step = static_cast<std::size_t>(mcu.num_blocks) * kBlockSize;
  const std::size_t size = std::size_t{per_row} * num_rows * mcu_step * sizeof(std::int16_t);
  auto* const blocks = reinterpret_cast<std::int16_t*>(out.at_least(size));
  jpeg_decompress_struct& info = jpeg.info();
  jpeg.trap().run([&] {
    jvirt_barray_ptr* const arrays = jpeg_read_coefficients(&info);
    for (int c = 0, first = 0; c < mcu.num_components; ++c) {
      const int horizontal = c == 0 ? mcu.horizontal : 1, vertical = c == 0 ? mcu.vertical : 1;
      const auto height = static_cast<JDIMENSION>(vertical);
      for (std::uint32_t row = 0; row < num_rows; ++row) {
        JBLOCKARRAY rows =
            info.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&info), arrays[c], row * height, height, FALSE);
        copy_blocks(rows, horizontal, vertical, per_row, mcu_step,
                    blocks + (std::size_t{row} * per_row) * mcu_step + first * kBlockSize);
      }
      first += horizontal * vertical;
    }
  });
  return blocks;
}

}  // namespace dlio
