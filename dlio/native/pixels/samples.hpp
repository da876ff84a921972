// The samples of a window, from its blocks to what a row of its pixels is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "jpeg/codec.hpp"
#include "jpeg/mcu.hpp"
#include "memory.hpp"
#include "pixels/kernels.hpp"
#include "resize/request.hpp"

namespace dlio {

// How an opened JPEG becomes pixels, where that is done here.
struct PictureFormat {
  const PixelKernels* kernels;
  Sampling sampling;
  Mcu mcu;
  const std::uint16_t* steps[kMaxComponents];  // the quantisers of each component, as long as the JPEG is open
};

// Returns how windows of a JPEG that is `width` pixels wide become the pixels that libjpeg makes of them; or nothing
// where libjpeg has to do it: another back end, sampling or colours (grey among them), tables that are missing, or the
// narrowest of images, whose chroma is upsampled in another way. `jpeg` is opened: the JPEG itself, or a window that
// was cut out of it.
std::optional<PictureFormat> picture_format(OpenJpeg& jpeg, const Mcu& mcu, std::uint32_t width) noexcept;

// The part of a window that is decoded: of each row of MCUs some, enough for a box and what chroma is upsampled from.
struct DecodedPart {
  std::uint32_t width, height;  // pixels of the window
  std::uint32_t first_mcu, end_mcu;
  std::uint32_t mcus_per_row;  // of the window
};

DecodedPart part_around(const Mcu& mcu, std::uint32_t width, std::uint32_t height, const Box& box) noexcept;

// Of each component the samples of two rows of MCUs, used by turns: they stay in the processor's nearest caches.
class SamplePlanes {
 public:
  // The format must outlive them, and the memory. Throws std::bad_alloc.
  SamplePlanes(const PictureFormat& format, const DecodedPart& part, Scratch& memory);

  // Transforms the blocks of some MCUs, `first` being the first one's number in its row.
  void add(std::uint32_t mcu_row, std::uint32_t first, const std::int16_t* blocks, std::uint32_t num_mcus) noexcept;
  // Repeats the samples of chroma at the edges of a row of MCUs, which is complete.
  void finish(std::uint32_t mcu_row) noexcept;

  // Returns the last row of MCUs that pixels of row `y` need.
  std::uint32_t last_mcu_row(std::uint32_t y) const noexcept;
  // Returns what pixels of row `y` are made of, from `x` on, which is even; the last two rows of MCUs that were added
  // end with last_mcu_row(y).
  SampleRows rows(std::uint32_t y, std::uint32_t x) const noexcept;

 private:
  struct Plane {
    std::uint8_t* data;
    std::size_t stride;
    std::uint32_t horizontal, vertical;  // blocks of an MCU
    int first_block;                     // in the MCU
  };

  std::uint8_t* row(int component, std::uint32_t y) const noexcept;
  std::uint32_t num_chroma(std::uint32_t num_pixels, int factor) const noexcept;

  const PictureFormat& format_;
  const DecodedPart part_;
  Plane planes_[kMaxComponents];
};

}  // namespace dlio
