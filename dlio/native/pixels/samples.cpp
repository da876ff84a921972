#include "pixels/samples.hpp"

#include <algorithm>

#include "jpeg/window.hpp"

namespace dlio {
namespace {

constexpr std::size_t kSide = 8;  // samples of a block
// Room before each row of samples, for the one before the first, and behind it.
constexpr std::size_t kBefore = 64, kBehind = 2 * kPixelsTooMany;

std::optional<Sampling> sampling_of(const Mcu& mcu) noexcept {
  if (mcu.num_components == 1) return std::nullopt;
  if (mcu.horizontal == 1 && mcu.vertical == 1) return Sampling::full;
  if (mcu.horizontal == 2) return mcu.vertical == 1 ? Sampling::half_width : Sampling::half;
  return std::nullopt;
}

}  // namespace

std::optional<PictureFormat> picture_format(OpenJpeg& jpeg, const Mcu& mcu, std::uint32_t width) noexcept {
  constexpr std::uint32_t kNarrow = 4;  // 2 samples of chroma
  const jpeg_decompress_struct& info = jpeg.info();
  const std::optional<Sampling> sampling = sampling_of(mcu);
  PictureFormat format{pixel_kernels(), sampling.value_or(Sampling::full), mcu, {}};
  if (format.kernels == nullptr || !sampling || info.jpeg_color_space != JCS_YCbCr || info.arith_code ||
      (mcu.horizontal == 2 && width <= kNarrow)) {
    return std::nullopt;
  }
  for (int i = 0; i < mcu.num_components; ++i) {
    const int table = info.comp_info[i].quant_tbl_no;
    if (table < 0 || table >= NUM_QUANT_TBLS || info.quant_tbl_ptrs[table] == nullptr) return std::nullopt;
    format.steps[i] = info.quant_tbl_ptrs[table]->quantval;
  }
  return format;
}

DecodedPart part_around(const Mcu& mcu, std::uint32_t width, std::uint32_t height, const Box& box) noexcept {
  const auto mcu_width = static_cast<std::uint32_t>(kSide) * mcu.horizontal;
  const Range columns = with_margin(box.left, box.width, width);
  return {width, height, columns.begin / mcu_width, (columns.end + mcu_width - 1) / mcu_width,
          (width + mcu_width - 1) / mcu_width};
}

SamplePlanes::SamplePlanes(const PictureFormat& format, const DecodedPart& part, Scratch& memory)
    : format_(format), part_(part) {
  std::size_t size = 0;
  int first_block = 0;
  for (int i = 0; i < format.mcu.num_components; ++i) {
    Plane& plane = planes_[i];
    plane = {nullptr, 0, 1, 1, first_block};
    if (i == 0) plane = {nullptr, 0, format.mcu.horizontal, format.mcu.vertical, 0};
    first_block += static_cast<int>(plane.horizontal * plane.vertical);
    const std::size_t width = (part.end_mcu - part.first_mcu) * kSide * plane.horizontal;
    plane.stride = (kBefore + width + kBehind + kAlignment - 1) / kAlignment * kAlignment;
    size += 2 * kSide * plane.vertical * plane.stride;
  }
  std::uint8_t* at = memory.at_least(size);
  for (int i = 0; i < format.mcu.num_components; ++i) {
    planes_[i].data = at + kBefore;
    at += 2 * kSide * planes_[i].vertical * planes_[i].stride;
  }
}

void SamplePlanes::add(std::uint32_t mcu_row, std::uint32_t first, const std::int16_t* blocks,
                       std::uint32_t num_mcus) noexcept {
  constexpr std::size_t kBlock = kSide * kSide;
  const std::int16_t* list[2 * kMaxRunMcus];
  for (int i = 0; i < format_.mcu.num_components; ++i) {
    const Plane& plane = planes_[i];
    const std::size_t x = kSide * plane.horizontal * (first - part_.first_mcu);
    for (std::uint32_t y = 0; y < plane.vertical; ++y) {
      std::size_t count = 0;
      const std::int16_t* block =
          blocks + (static_cast<std::size_t>(plane.first_block) + std::size_t{y} * plane.horizontal) * kBlock;
      for (std::uint32_t mcu = 0; mcu < num_mcus; ++mcu) {
        for (std::uint32_t j = 0; j < plane.horizontal; ++j) list[count++] = block + j * kBlock;
        block += static_cast<std::size_t>(format_.mcu.num_blocks) * kBlock;
      }
      const std::uint32_t top = static_cast<std::uint32_t>(kSide) * (mcu_row * plane.vertical + y);
      format_.kernels->transform(list, count, format_.steps[i], row(i, top) + x, plane.stride);
    }
  }
}

void SamplePlanes::finish(std::uint32_t mcu_row) noexcept {
  if (format_.mcu.horizontal == 1) return;
  const std::size_t decoded = (part_.end_mcu - part_.first_mcu) * kSide;
  const std::size_t end = num_chroma(part_.width, format_.mcu.horizontal) - part_.first_mcu * kSide;
  for (int i = 1; i < format_.mcu.num_components; ++i) {
    for (std::uint32_t y = 0; y < kSide; ++y) {
      std::uint8_t* const samples = row(i, mcu_row * static_cast<std::uint32_t>(kSide) + y);
      samples[-1] = samples[0];
      if (end <= decoded) samples[end] = samples[end - 1];
    }
  }
}

std::uint32_t SamplePlanes::last_mcu_row(std::uint32_t y) const noexcept {
  const auto height = static_cast<std::uint32_t>(kSide) * format_.mcu.vertical;
  // The row of chroma below an odd row is that of the next even one.
  return (format_.sampling == Sampling::half ? std::min(y + 1, part_.height - 1) : y) / height;
}

SampleRows SamplePlanes::rows(std::uint32_t y, std::uint32_t x) const noexcept {
  SampleRows rows{row(0, y) + x, {}, {}};
  const bool halved = format_.sampling == Sampling::half;
  const std::uint32_t near = halved ? y / 2 : y;
  const std::uint32_t last = num_chroma(part_.height, format_.mcu.vertical) - 1;
  const std::uint32_t far = y % 2 == 0 ? near - (near > 0) : std::min(near + 1, last);
  for (int i = 0; i < 2; ++i) {
    rows.near[i] = row(i + 1, near) + x / format_.mcu.horizontal;
    rows.far[i] = halved ? row(i + 1, far) + x / format_.mcu.horizontal : nullptr;
  }
  return rows;
}

std::uint8_t* SamplePlanes::row(int component, std::uint32_t y) const noexcept {
  const Plane& plane = planes_[component];
  return plane.data + y % (2 * kSide * plane.vertical) * plane.stride;
}

std::uint32_t SamplePlanes::num_chroma(std::uint32_t num_pixels, int factor) const noexcept {
  const auto divisor = static_cast<std::uint32_t>(factor);
  return (num_pixels + divisor - 1) / divisor;
}

}  // namespace dlio
