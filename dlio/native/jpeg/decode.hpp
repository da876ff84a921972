// From a JPEG to pixels: all of them, or those of a box resized to a target.
#pragma once

#include <cstdint>

#include "image.hpp"
#include "resize/request.hpp"
#include "resize/resize.hpp"
#include "status.hpp"

namespace dlio {

// Returns all pixels as libjpeg-turbo decodes them by default. Finds all damage that decode_box finds in any box.
// Throws JpegError, std::bad_alloc.
Image decode(Bytes jpeg);

// Decodes the box (from its window only, where the JPEG is crop-ready), resizes it and writes it to the target, which
// stays as it was on failure. Throws nothing: a batch continues behind a bad image.
Status decode_box(Bytes jpeg, const Request& request, const Target& target) noexcept;

}  // namespace dlio
