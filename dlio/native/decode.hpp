// From a JPEG to pixels: all of them, or those of a box resized to a target.
#pragma once

#include <cstdint>

#include "codec.hpp"
#include "memory.hpp"
#include "resize.hpp"
#include "window.hpp"

namespace dlio {

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

// What becomes of an image: pixels outside the box are not there, those of the box around the part count as far as the
// resize reaches. Without a part all of the box is resized.
struct Request {
  RequestedBox box;
  const RequestedPart* part;  // or null
  bool flip;
};

// An image of height x width x 3 bytes.
struct Image {
  AlignedBytes data;
  std::uint32_t height;
  std::uint32_t width;
};

// Returns all pixels as libjpeg-turbo decodes them by default. Throws JpegError, std::bad_alloc.
Image decode(Bytes jpeg);

// Decodes the box (from its window only, where the JPEG is crop-ready), resizes it and writes it to the target, which
// stays as it was on failure. Throws nothing: a batch goes on behind a bad image.
Status decode_box(Bytes jpeg, const Request& request, const Target& target) noexcept;

}  // namespace dlio
