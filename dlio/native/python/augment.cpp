#include "python/augment.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <vector>

#include "augment/mix.hpp"
#include "augment/operations.hpp"
#include "resize/request.hpp"

namespace dlio {
namespace {

namespace nb = nanobind;

using Batch = nb::ndarray<std::uint8_t, nb::ndim<4>, nb::device::cpu>;
template <class Number, std::size_t kDimensions>
using Given = nb::ndarray<const Number, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

// Whether an array has these lengths in memory without gaps, the axes in this order.
bool lies_as(const Batch& images, const std::array<std::size_t, 4>& axes) {
  std::int64_t stride = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (images.size() > 0 && images.shape(axes[i]) != 1 && images.stride(axes[i]) != stride) return false;
    stride *= static_cast<std::int64_t>(images.shape(axes[i]));
  }
  return true;
}

// Returns image 0. Raises ValueError for images of another layout or size.
Picture first_of(const Batch& images) {
  const bool is_plain = lies_as(images, {0, 1, 2, 3});
  if (images.shape(3) != 3 || !(is_plain || lies_as(images, {0, 3, 1, 2}))) {
    throw nb::value_error("images: expected (n, H, W, 3) without gaps, or a view of one of (n, 3, H, W)");
  }
  const std::size_t height = images.shape(1), width = images.shape(2);
  if (height > 0 && width > kMaxPixels / height) throw nb::value_error("images: expected fewer pixels");
  return {images.data(), height, width, !is_plain};
}

void augment(const Batch& images, const Given<std::uint8_t, 2>& steps, const Given<double, 3>& numbers) {
  Picture picture = first_of(images);
  const std::size_t num_images = images.shape(0), num_steps = steps.shape(1);
  const std::size_t each = std::tuple_size<Numbers>::value;
  if (steps.shape(0) != num_images || numbers.shape(0) != num_images || numbers.shape(1) != num_steps ||
      numbers.shape(2) != each) {
    throw nb::value_error("steps, numbers: expected (n, k) and (n, k, 9)");
  }
  std::vector<Numbers> all(num_images * num_steps);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::copy_n(numbers.data() + i * each, each, all[i].begin());
    if (!is_possible(steps.data()[i], all[i])) throw nb::value_error("steps, numbers: no possible operation");
  }
  if (picture.num_bytes() == 0) return;
  nb::gil_scoped_release unlocked;
  Kept<AugmentMemory> memory;
  for (std::size_t i = 0; i < num_images; ++i, picture.data += picture.num_bytes()) {
    for (std::size_t k = i * num_steps; k < (i + 1) * num_steps; ++k) {
      change(picture, static_cast<Operation>(steps.data()[k]), all[k], *memory);
    }
  }
}

void mix_images(const Batch& images, const Given<double, 1>& shares, const Given<std::int32_t, 2>& boxes) {
  const Picture first = first_of(images);
  const std::size_t count = images.shape(0);
  if (shares.shape(0) != count || boxes.shape(0) != count || boxes.shape(1) != 4) {
    throw nb::value_error("shares, boxes: expected (n,) and (n, 4)");
  }
  const auto height = static_cast<std::int64_t>(first.height), width = static_cast<std::int64_t>(first.width);
  std::vector<Mixed> mixed;
  mixed.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t* const box = boxes.data() + 4 * i;
    const double share = shares.data()[i];
    const bool is_inside = box[0] >= 0 && box[1] >= 0 && box[2] <= height && box[3] <= width;
    if (!(share >= 0 && share <= 1 && is_inside)) {
      throw nb::value_error("shares, boxes: expected 0 to 1, and top, left, bottom, right within the images");
    }
    const auto side = [&](int number) { return static_cast<std::size_t>(std::max(box[number], 0)); };
    mixed.push_back({share, side(0), side(1), side(2), side(3)});
  }
  nb::gil_scoped_release unlocked;
  Kept<AugmentMemory> memory;
  mix(first, count, mixed.data(), *memory);
}

}  // namespace

void bind_augment(nb::module_& module) {
  using namespace nb::literals;
  module.def("augment", augment, "images"_a.noconvert(), "steps"_a.noconvert(), "numbers"_a.noconvert());
  module.def("mix_images", mix_images, "images"_a.noconvert(), "shares"_a.noconvert(), "boxes"_a.noconvert());
}

}  // namespace dlio
