// The Python module dlio.native._jpeg: arguments are checked here, the interpreter lock is free during all real work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "jpeg/crop_ready.hpp"
#include "jpeg/decode.hpp"
#include "jpeg/encode.hpp"
#include "jpeg/probe.hpp"
#include "jpeg/window_decoder.hpp"
#include "normalize.hpp"
#include "png.hpp"
#include "python/arrays.hpp"
#include "python/augment.hpp"
#include "python/pieces.hpp"
#include "resize/pixels.hpp"

namespace nb = nanobind;

namespace dlio {
namespace {

nb::bytes crop_ready_bytes(nb::object jpeg) {
  const BufferView view(jpeg);
  Kept<Scratch> memory;
  std::optional<Bytes> rewritten;
  {
    nb::gil_scoped_release unlocked;
    rewritten = make_crop_ready(view.bytes(), *memory);
  }
  if (rewritten) return nb::bytes(rewritten->data, rewritten->size);
  if (nb::isinstance<nb::bytes>(jpeg)) return nb::borrow<nb::bytes>(jpeg);
  return nb::bytes(view.bytes().data, view.bytes().size);
}

nb::bytes encode_pixels(nb::object pixels, int quality) {
  if (quality < 1 || quality > 100) throw nb::value_error("quality: expected 1 to 100");
  const BufferView view = view_pixels(pixels, "pixels");
  Kept<Scratch> memory;
  Bytes jpeg{};
  {
    nb::gil_scoped_release unlocked;
    jpeg = encode(view.pixels(), quality, *memory);
  }
  return nb::bytes(jpeg.data, jpeg.size);
}

nb::object decode_to_array(nb::object jpeg) {
  const BufferView view(jpeg);
  Image image;
  {
    nb::gil_scoped_release unlocked;
    image = decode(view.bytes());
  }
  return to_array(std::move(image));
}

#ifdef DLIO_LIBDEFLATE
nb::object decode_png_to_array(nb::object png) {
  const BufferView view(png);
  std::optional<Image> image;
  {
    nb::gil_scoped_release unlocked;
    image = decode_png(view.bytes());
  }
  return image ? to_array(std::move(*image)) : nb::none();
}
#endif

// Returns the status that `place_one(i)` has for each image of the batch; one without a place is not looked at.
template <class PlaceOne>
nb::object place_all(const BatchArrays& batch, PlaceOne place_one) {
  std::int32_t* status = nullptr;
  nb::object statuses = new_array({batch.num_images}, status);
  {
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < batch.num_images; ++i) {
      const Target target = batch.target(i);
      if (target.height > 0 && target.width > 0) status[i] = static_cast<std::int32_t>(place_one(i, target));
    }
  }
  return statuses;
}

nb::object decode_batch(const nb::list& buffers, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter) {
  const std::vector<BufferView> views = view_all(buffers);
  const BatchArrays batch = check_batch(views.size(), boxes, flips, out, parts, places, filter);
  return place_all(batch, [&](std::size_t i, const Target& target) {
    return decode_box(views[i].bytes(), batch.request(i), target);
  });
}

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

void adjust_colors(const nb::ndarray<>& images, const nb::ndarray<nb::ro>& steps, const nb::ndarray<nb::ro>& factors) {
  const ColorArrays colors = check_colors(images, steps, factors);
  nb::gil_scoped_release unlocked;
  ColorPixels pixels = colors.first;
  for (std::size_t i = 0; i < colors.num_images * colors.num_steps; ++i) {
    pixels.data = colors.first.data + i / colors.num_steps * 3 * pixels.count;
    adjust(pixels, static_cast<ColorStep>(colors.steps[i]), colors.factors[i]);
  }
}

Probe probe_buffer(nb::object jpeg) {
  const BufferView view(jpeg);
  nb::gil_scoped_release unlocked;
  return probe(view.bytes());
}

nb::object measure_all(const nb::list& buffers) {
  const std::vector<BufferView> views = view_all(buffers);
  std::int64_t* numbers = nullptr;
  nb::object sizes = new_array({views.size(), 2}, numbers);
  {
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < views.size(); ++i) {
      const Size size = measure(views[i].bytes());
      numbers[2 * i] = size.height;
      numbers[2 * i + 1] = size.width;
    }
  }
  return sizes;
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

// Raises the exception that a status stands for; `errors` is the module dlio.errors.
void translate(const std::exception_ptr& thrown, void* errors) {
  try {
    std::rethrow_exception(thrown);
  } catch (const JpegError& error) {
    if (error.status() == Status::out_of_memory) {
      PyErr_NoMemory();
      return;
    }
    const nb::object kind = nb::borrow(static_cast<PyObject*>(errors))
                                .attr(error.status() == Status::unsupported ? "UnsupportedJpegError" : "DataError");
    PyErr_SetString(kind.ptr(), (std::string(describe(error.status())) + ": " + error.what()).c_str());
  }
}

void bind_probe(nb::module_& module) {
  nb::class_<Probe>(module, "Probe")
      .def_ro("width", &Probe::width)
      .def_ro("height", &Probe::height)
      .def_ro("components", &Probe::components)
      .def_ro("subsampling", &Probe::subsampling)
      .def_ro("progressive", &Probe::progressive)
      .def_ro("crop_ready", &Probe::crop_ready)
      .def_ro("complete", &Probe::complete)
      .def_ro("orientation", &Probe::orientation)
      .def("__repr__", [](const Probe& p) {
        return nb::str(
                   "Probe(width={}, height={}, components={}, subsampling={!r}, progressive={}, crop_ready={}, "
                   "complete={}, orientation={})")
            .format(p.width, p.height, p.components, p.subsampling, p.progressive, p.crop_ready, p.complete,
                    p.orientation);
      });
}

}  // namespace
}  // namespace dlio

NB_MODULE(_jpeg, module) {
  using namespace nb::literals;
  nb::register_exception_translator(dlio::translate, nb::module_::import_("dlio.errors").release().ptr());
  dlio::bind_probe(module);
  module.def("make_crop_ready", dlio::crop_ready_bytes, "jpeg"_a);
  module.def("encode", dlio::encode_pixels, "pixels"_a, "quality"_a);
  module.def("decode", dlio::decode_to_array, "jpeg"_a);
#ifdef DLIO_LIBDEFLATE
  module.def("decode_png", dlio::decode_png_to_array, "png"_a);
#endif
  module.def("decode_batch", dlio::decode_batch, "buffers"_a, "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("resize_batch", dlio::resize_array, "images"_a.noconvert(), "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("resize_batch", dlio::resize_list, "images"_a, "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("adjust_colors", dlio::adjust_colors, "images"_a.noconvert(), "steps"_a.noconvert(),
             "factors"_a.noconvert());
  module.def("normalize", dlio::normalize_images<std::uint16_t>, "images"_a.noconvert(), "tables"_a.noconvert(),
             "out"_a.noconvert(), "channel"_a, "out_channel"_a);
  module.def("normalize", dlio::normalize_images<std::uint32_t>, "images"_a.noconvert(), "tables"_a.noconvert(),
             "out"_a.noconvert(), "channel"_a, "out_channel"_a);
  module.def("probe", dlio::probe_buffer, "jpeg"_a);
  module.def("measure", dlio::measure_all, "buffers"_a);
  dlio::bind_augment(module);
  dlio::bind_pieces(module);
  module.def("status_message", dlio::status_message, "status"_a);
  module.attr("MAX_PIXELS") = dlio::kMaxPixels;
  module.attr("TAKES_OUR_DECODER") = dlio::libjpeg_takes_our_decoder();  // now, while one thread runs
}
