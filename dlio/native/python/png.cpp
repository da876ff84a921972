// The Python module dlio.native._png, which needs libdeflate: the core's decoder of PNGs.
#include <nanobind/nanobind.h>

#include <optional>
#include <utility>

#include "png/png.hpp"
#include "python/arrays.hpp"

namespace nb = nanobind;

namespace dlio {
namespace {

nb::object decode_png_to_array(nb::object png) {
  const BufferView view(png);
  std::optional<Image> image;
  {
    nb::gil_scoped_release unlocked;
    image = decode_png(view.bytes());
  }
  return image ? to_array(std::move(*image)) : nb::none();
}

}  // namespace
}  // namespace dlio

NB_MODULE(_png, module) {
  using namespace nb::literals;
  module.def("decode_png", dlio::decode_png_to_array, "png"_a);
}
