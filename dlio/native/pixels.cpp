#include "pixels.hpp"

#include <cstring>
#include <limits>
#include <new>

#include "columns.hpp"
#include "dispatch.hpp"
#include "memory.hpp"

namespace dlio {
namespace {

constexpr std::size_t kRgbBytes = 3;
constexpr std::size_t kMaxSide = std::numeric_limits<std::int32_t>::max();

struct Workspace {
  Scratch pixels;

  void trim() noexcept { pixels.trim(); }
};

// Makes room behind each pixel of a row, as the resize wants it.
DLIO_FOR_AVX2_TOO
void spread(const std::uint8_t* row, std::size_t num_pixels, std::uint8_t* out) {
  for (std::size_t x = 0; x < num_pixels; ++x) std::memcpy(out + x * kPixelBytes, row + x * kRgbBytes, kRgbBytes);
}

void resize_or_throw(const RgbPixels& pixels, const Request& request, const Target& target) {
  if (pixels.width > kMaxSide || pixels.height > kMaxSide) {
    throw JpegError(Status::too_large, describe(Status::too_large));
  }
  const Box box = checked_box(request, static_cast<std::uint32_t>(pixels.width),
                              static_cast<std::uint32_t>(pixels.height));
  Kept<Workspace> work;
  const std::size_t stride = box.width * kPixelBytes;
  std::uint8_t* const rows = work->pixels.at_least(stride * box.height + kPixelsReadAhead);
  const std::uint8_t* const first = pixels.data + (box.top * pixels.width + box.left) * kRgbBytes;
  for (std::size_t y = 0; y < box.height; ++y) {
    spread(first + y * pixels.width * kRgbBytes, box.width, rows + y * stride);
  }
  resize({rows, stride, box.width, box.height}, part_of(request), request.flip, target);
}

}  // namespace

Status resize_box(const RgbPixels& pixels, const Request& request, const Target& target) noexcept {
  try {
    resize_or_throw(pixels, request, target);
    return Status::decoded;
  } catch (const JpegError& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

}  // namespace dlio
