// The rows of pixels of a window, made from its MCUs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"
#include "pixels/samples.hpp"
#include "resize/resize.hpp"

namespace dlio {

struct PictureMemory {
  Scratch planes, sums, row;

  void trim() noexcept {
    planes.trim();
    sums.trim();
    row.trim();
  }
};

// Reads the pixels of a box that lies in a window, whose MCUs `Source` gives: skip(n) goes over n of them; read(n)
// returns the blocks of the next n in a row of MCUs, or of fewer, kMaxRunMcus at most, and sets n. It may throw
// JpegError.
template <class Source>
class PictureRows final : public PixelRows {
 public:
  // All must outlive the rows. Throws std::bad_alloc.
  PictureRows(const PictureFormat& format, const DecodedPart& part, const Box& box, Source& source,
              PictureMemory& memory)
      : PixelRows(box.width, box.height, format.kernels->makes_planes ? plane_step_of(box) : 0),
        format_(format),
        part_(part),
        source_(source),
        planes_(format, part, memory.planes),
        y_(box.top) {
    const std::uint32_t begin = part.first_mcu * 8u * format.mcu.horizontal;
    odd_ = (box.left - begin) % 2;
    x_ = box.left - begin - odd_;
    sums_ = reinterpret_cast<std::int16_t*>(memory.sums.at_least(2 * plane_step_of(box) * sizeof(std::int16_t)));
    row_ = memory.row.at_least(kPixelBytes * plane_step_of(box));
    num_mcu_rows_ = (y_ > 0 ? y_ - 1 : 0) / (8u * format.mcu.vertical);
    source_.skip(num_mcu_rows_ * std::size_t{part.mcus_per_row});
  }

  const std::uint8_t* next() override {
    while (num_mcu_rows_ <= planes_.last_mcu_row(y_)) decode_mcu_row();
    format_.kernels->mix(format_.sampling, planes_.rows(y_, x_), width + odd_, sums_, row_, plane_step);
    ++y_;
    return row_ + odd_ * (plane_step > 0 ? 1 : kPixelBytes);
  }

 private:
  static constexpr std::size_t kPixelBytes = 4;

  static std::size_t plane_step_of(const Box& box) noexcept {
    return (box.width + 1 + kPixelsTooMany + kPixelsReadAhead + kAlignment - 1) / kAlignment * kAlignment;
  }

  void decode_mcu_row() {
    source_.skip(part_.first_mcu);
    for (std::uint32_t mcu = part_.first_mcu; mcu < part_.end_mcu;) {
      std::uint32_t num_mcus = part_.end_mcu - mcu;
      const std::int16_t* const blocks = source_.read(num_mcus);
      planes_.add(num_mcu_rows_, mcu, blocks, num_mcus);
      mcu += num_mcus;
    }
    source_.skip(part_.mcus_per_row - part_.end_mcu);
    planes_.finish(num_mcu_rows_++);
  }

  const PictureFormat& format_;
  const DecodedPart part_;
  Source& source_;
  SamplePlanes planes_;
  std::uint32_t x_, y_;
  std::uint32_t odd_;  // pixels before the box
  std::uint32_t num_mcu_rows_;
  std::int16_t* sums_;
  std::uint8_t* row_;
};

}  // namespace dlio
