// The Python module dlio.native._jpeg, which needs libjpeg-turbo: the core's work on JPEGs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "jpeg/crop_ready.hpp"
#include "jpeg/decode.hpp"
#include "jpeg/encode.hpp"
#include "jpeg/probe.hpp"
#include "jpeg/window_decoder.hpp"
#include "planes/make.hpp"
#include "planes/record.hpp"
#include "processor.hpp"
#include "python/arrays.hpp"
#include "python/batch.hpp"

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

struct RecordBytes {
  std::vector<std::uint8_t> bytes;

  void trim() noexcept { trim_kept(bytes); }
};

nb::object planes_of(nb::object jpeg) {
  const BufferView view(jpeg);
  Kept<RecordBytes> record;
  bool made = false;
  {
    nb::gil_scoped_release unlocked;
    made = to_planes(view.bytes(), record->bytes);
  }
  return made ? nb::object(nb::bytes(record->bytes.data(), record->bytes.size())) : nb::none();
}

nb::bytes jpeg_of(nb::object record) {
  const BufferView view(record);
  Kept<Scratch> memory;
  Bytes jpeg{};
  {
    nb::gil_scoped_release unlocked;
    jpeg = from_planes(view.bytes(), *memory);
  }
  return nb::bytes(jpeg.data, jpeg.size);
}

nb::list back_end_names() {
  nb::list names;
  for (const BackEnd found : back_ends()) names.append(name_of(found));
  return names;
}

void choose_back_end(const std::string& name) {
  if (!use_back_end(name)) throw nb::value_error(("this processor has no back end " + name).c_str());
}

bool holds_planes(nb::object record) { return is_planes(BufferView(record).bytes()); }

bool holds_original(nb::object record) { return restores_original(BufferView(record).bytes()); }

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

nb::object decode_batch(const nb::list& buffers, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter) {
  const std::vector<BufferView> views = view_all(buffers);
  const BatchArrays batch = check_batch(views.size(), boxes, flips, out, parts, places, filter);
  return place_all(batch, [&](std::size_t i, const Target& target) {
    return decode_box(views[i].bytes(), batch.request(i), target);
  });
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
  module.def("to_planes", dlio::planes_of, "jpeg"_a);
  module.def("from_planes", dlio::jpeg_of, "record"_a);
  module.def("is_planes", dlio::holds_planes, "record"_a);
  module.def("planes_restores_original", dlio::holds_original, "record"_a);
  module.def("use_back_end", dlio::choose_back_end, "name"_a);
  module.attr("BACK_ENDS") = dlio::back_end_names();
  module.def("encode", dlio::encode_pixels, "pixels"_a, "quality"_a);
  module.def("decode", dlio::decode_to_array, "jpeg"_a);
  module.def("decode_batch", dlio::decode_batch, "buffers"_a, "boxes"_a.noconvert(), "flips"_a.noconvert(),
             "out"_a.noconvert(), "parts"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(),
             "interpolation"_a = 0);
  module.def("probe", dlio::probe_buffer, "jpeg"_a);
  module.def("measure", dlio::measure_all, "buffers"_a);
  module.attr("TAKES_OUR_DECODER") = dlio::libjpeg_takes_our_decoder();  // now, while one thread runs
}
