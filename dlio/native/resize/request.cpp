#include "resize/request.hpp"

#include "status.hpp"

namespace dlio {
namespace {

bool lies_within(const RequestedBox& box, std::uint32_t width, std::uint32_t height) noexcept {
  return box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 &&
         std::int64_t{box.left} + box.width <= width && std::int64_t{box.top} + box.height <= height;
}

// Also false where a number is none (NaN).
bool lies_within(const RequestedPart& part, const RequestedBox& box) noexcept {
  return part.left >= 0 && part.top >= 0 && part.width > 0 && part.height > 0 && part.left + part.width <= box.width &&
         part.top + part.height <= box.height;
}

}  // namespace

Box checked_box(const Request& request, std::uint32_t width, std::uint32_t height) {
  const RequestedBox& box = request.box;
  if (!lies_within(box, width, height) || (request.part != nullptr && !lies_within(*request.part, box))) {
    throw JpegError(Status::bad_box, describe(Status::bad_box));
  }
  return {static_cast<std::uint32_t>(box.left), static_cast<std::uint32_t>(box.top),
          static_cast<std::uint32_t>(box.width), static_cast<std::uint32_t>(box.height)};
}

Part part_of(const Request& request) noexcept {
  if (request.part == nullptr) {
    return {{0, static_cast<double>(request.box.width)}, {0, static_cast<double>(request.box.height)}, request.filter};
  }
  return {{request.part->left, request.part->width}, {request.part->top, request.part->height}, request.filter};
}

}  // namespace dlio
