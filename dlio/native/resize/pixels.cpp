#include "resize/pixels.hpp"

#include <cstring>
#include <new>

#include "dispatch.hpp"
#include "memory.hpp"
#include "resize/columns.hpp"

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

void resize_or_throw(const RgbPixels& pixels, const Request& request, const Target& target) {
  if (pixels.height > 0 && pixels.width > kMaxPixels / pixels.height) {
    throw JpegError(Status::too_large, describe(Status::too_large));
  }
  const Box box =
      checked_box(request, static_cast<std::uint32_t>(pixels.width), static_cast<std::uint32_t>(pixels.height));
  Kept<Scratch> row;
  SpreadRows rows(pixels, box, row->at_least(box.width * kPixelBytes + kPixelsReadAhead));
  resize(rows, part_of(request), request.flip, target);
}

}  // namespace

Status resize_box(const RgbPixels& pixels, const Request& request, const Target& target) noexcept {
  return status_of([&] { resize_or_throw(pixels, request, target); });
}

}  // namespace dlio
