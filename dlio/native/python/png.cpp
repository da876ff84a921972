// The Python module dlio.native._png, which needs libdeflate: the core's decoder of PNGs, and of zlib streams.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
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

nb::object inflate_to_bytes(nb::object zlib, std::uint32_t max_bytes) {
  const BufferView view(zlib);
  const nb::object content = nb::steal(PyBytes_FromStringAndSize(nullptr, max_bytes));
  if (!content) throw nb::python_error();
  char* const out = PyBytes_AsString(content.ptr());
  std::optional<std::size_t> size;
  {
    nb::gil_scoped_release unlocked;
    size = inflate(view.bytes(), reinterpret_cast<std::uint8_t*>(out), max_bytes);
  }
  if (!size) return nb::none();
  return *size == max_bytes ? content : nb::steal(PyBytes_FromStringAndSize(out, static_cast<Py_ssize_t>(*size)));
}

}  // namespace
}  // namespace dlio

NB_MODULE(_png, module) {
  using namespace nb::literals;
  module.def("decode_png", dlio::decode_png_to_array, "png"_a);
  module.def("inflate", dlio::inflate_to_bytes, "zlib"_a, "max_bytes"_a);
}
