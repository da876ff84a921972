// The Python module dlio.native._core, which needs no library: arguments are checked here, the interpreter lock is free
// during all real work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "normalize.hpp"
#include "python/arrays.hpp"
#include "python/augment.hpp"
#include "python/batch.hpp"
#include "python/pieces.hpp"
#include "resize/pixels.hpp"
#include "status.hpp"

namespace nb = nanobind;

namespace dlio {
namespace {

nb::object resize_list(const nb::list& images, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                       const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter) {
  const std::vector<BufferView> views = view_all_pixels(images);
  const BatchArrays batch = check_batch(views.size(), boxes, flips, out, parts, places, filter);
  return place_all(batch, [&](std::size_t i, const Target& target) {
    return resize_box(views[i].pixels(), batch.request(i), target);
  });
}

using Images = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

nb::object resize_array(const Images& images, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter) {
  if (images.shape(3) != 3) throw nb::value_error("images: expected uint8 of shape (n, height, width, 3)");
  const BatchArrays batch = check_batch(images.shape(0), boxes, flips, out, parts, places, filter);
  const std::size_t height = images.shape(1), width = images.shape(2);
  return place_all(batch, [&](std::size_t i, const Target& target) {
    return resize_box({images.data() + i * height * width * 3, height, width}, batch.request(i), target);
  });
}

template <class Number>
using Tables = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class Number>
using Numbers = nb::ndarray<Number, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

// The lengths of images whose channels are on axis 1 or 3.
struct ImageLengths {
  std::size_t images;
  std::size_t channels;
  std::size_t pixels;

  template <class Array>
  ImageLengths(const Array& array, int axis) : images(array.shape(0)), channels(array.shape(axis)), pixels(1) {
    if (axis != 1 && axis != 3) throw nb::value_error("channel, out_channel: expected 1 or 3");
    pixels = array.shape(axis == 1 ? 3 : 1) * array.shape(2);
  }
  bool operator==(const ImageLengths& other) const {
    return images == other.images && channels == other.channels && pixels == other.pixels;
  }
};

template <class Number>
void normalize_images(const Images& images, const Tables<Number>& tables, const Numbers<Number>& out, int channel,
                      int out_channel) {
  const ImageLengths lengths(images, channel);
  const bool is_table = tables.shape(0) == lengths.channels && tables.shape(1) == 256;
  if (!(is_table && lengths == ImageLengths(out, out_channel))) {
    throw nb::value_error("tables, out: expected 256 numbers for each channel, and as many pixels as the images have");
  }
  const auto layout = [](int axis) { return axis == 1 ? Channels::kPlanes : Channels::kInterleaved; };
  nb::gil_scoped_release unlocked;
  normalize(images.data(), layout(channel), lengths.images, lengths.channels, lengths.pixels, tables.data(),
            layout(out_channel), out.data());
}

std::string status_message(std::int32_t status) {
  const char* text = describe(static_cast<Status>(status));
  if (text == nullptr) throw nb::value_error(("no status of decode_batch: " + std::to_string(status)).c_str());
  return text;
}

}  // namespace
}  // namespace dlio

NB_MODULE(_core, module) {
  using namespace nb::literals;
  module.def("resize_batch", dlio::resize_array, "images"_a.noconvert(), "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("resize_batch", dlio::resize_list, "images"_a, "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("normalize", dlio::normalize_images<std::uint16_t>, "images"_a.noconvert(), "tables"_a.noconvert(),
             "out"_a.noconvert(), "channel"_a, "out_channel"_a);
  module.def("normalize", dlio::normalize_images<std::uint32_t>, "images"_a.noconvert(), "tables"_a.noconvert(),
             "out"_a.noconvert(), "channel"_a, "out_channel"_a);
  dlio::bind_augment(module);
  dlio::bind_pieces(module);
  module.def("status_message", dlio::status_message, "status"_a);
  module.attr("LEFT_TO_PILLOW") = static_cast<std::int32_t>(dlio::Status::unsupported);
  module.attr("MAX_PIXELS") = dlio::kMaxPixels;
}
