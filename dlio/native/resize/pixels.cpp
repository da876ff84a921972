#include "resize/pixels.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <new>

#include "dispatch.hpp"
#include "memory.hpp"
#include "resize/columns.hpp"
#include "resize/planes.hpp"

namespace dlio {
namespace {

constexpr std::size_t kRgbBytes = 3;

// Makes room behind each pixel of a row, as the resize wants it.
DLIO_FOR_AVX2_TOO
void spread(const std::uint8_t* row, std::size_t num_pixels, std::uint8_t* out) {
  for (std::size_t x = 0; x < num_pixels; ++x) std::memcpy(out + x * kPixelBytes, row + x * kRgbBytes, kRgbBytes);
}

class SpreadRows final : public PixelRows {
 public:
  // `row` has room for a row of the box, spread.
  SpreadRows(const RgbPixels& pixels, const Box& box, std::uint8_t* row) noexcept
      : PixelRows(box.width, box.height),
        next_(pixels.data + (box.top * pixels.width + box.left) * kRgbBytes),
        stride_(pixels.width * kRgbBytes),
        row_(row) {}

  const std::uint8_t* next() override {
    spread(next_, width, row_);
    next_ += stride_;
    return row_;
  }

 private:
  const std::uint8_t* next_;
  const std::size_t stride_;
  std::uint8_t* const row_;
};

// Whether each pixel of the output is one of the input, and no other counts.
bool is_copied(const Stretch& part, std::uint32_t output) noexcept {
  return part.size == output && part.begin == std::floor(part.begin);
}

void copy_pixels(const std::uint8_t* pixels, std::size_t stride, bool flip, const Target& target) {
  for (std::size_t y = 0; y < target.height; ++y, pixels += stride) {
    std::uint8_t* out = target.row(0, y);
    if (target.pixel_bytes() == 1) {
      part_row(pixels, target.width, flip, {out, target.row(1, y), target.row(2, y)});
    } else if (flip) {
      for (std::size_t x = target.width; x-- > 0; out += kRgbBytes) std::memcpy(out, pixels + x * kRgbBytes, kRgbBytes);
    } else {
      std::memcpy(out, pixels, target.width * kRgbBytes);
    }
  }
}

void resize_or_throw(const RgbPixels& pixels, const Request& request, const Target& target) {
  if (pixels.height > 0 && pixels.width > kMaxPixels / pixels.height) {
    throw JpegError(Status::too_large, describe(Status::too_large));
  }
  const Box box =
      checked_box(request, static_cast<std::uint32_t>(pixels.width), static_cast<std::uint32_t>(pixels.height));
  const Part part = part_of(request);
  if (is_copied(part.columns, target.width) && is_copied(part.rows, target.height)) {
    const auto left = box.left + static_cast<std::size_t>(part.columns.begin);
    const auto top = box.top + static_cast<std::size_t>(part.rows.begin);
    const std::size_t stride = pixels.width * kRgbBytes;
    return copy_pixels(pixels.data + top * stride + left * kRgbBytes, stride, request.flip, target);
  }
  Kept<Scratch> row;
  SpreadRows rows(pixels, box, row->at_least(box.width * kPixelBytes + kPixelsReadAhead));
  resize(rows, part, request.flip, target);
}

}  // namespace

Status resize_box(const RgbPixels& pixels, const Request& request, const Target& target) noexcept {
  return status_of([&] { resize_or_throw(pixels, request, target); });
}

}  // namespace dlio
