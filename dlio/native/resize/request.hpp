// What a caller wants of an image: a box, the part of it that is resized, and whether to mirror it.
#pragma once

#include <cstdint>

#include "resize/resize.hpp"

namespace dlio {

// An image that claims more pixels is refused before memory is taken.
constexpr std::uint64_t kMaxPixels = 178'956'970;  // dlio.dataset.schema.MAX_PIXELS, which a test compares

// Pixels [left, left + width) x [top, top + height).
struct Box {
  std::uint32_t left;
  std::uint32_t top;
  std::uint32_t width;
  std::uint32_t height;
};

// A box as given by a caller: not checked against anything.
struct RequestedBox {
  std::int32_t left;
  std::int32_t top;
  std::int32_t width;
  std::int32_t height;
};

// A part of a box as given by a caller, in pixels from the box's corner.
struct RequestedPart {
  double left;
  double top;
  double width;
  double height;
};

// The result of an image: pixels outside the box are not there, those of the box around the part count as far as the
// resize reaches. Without a part all of the box is resized.
struct Request {
  RequestedBox box;
  const RequestedPart* part;  // or null
  bool flip;
  Filter filter = Filter::bilinear;
};

// Returns the box. Throws JpegError where it is empty or reaches outside the image, or its part outside of it.
Box checked_box(const Request& request, std::uint32_t width, std::uint32_t height);

// Returns what is resized of a box that was checked.
Part part_of(const Request& request) noexcept;

}  // namespace dlio
