#include "python/arrays.hpp"

#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace dlio {
namespace {

constexpr std::size_t kMaxSide = std::numeric_limits<std::int32_t>::max();

// Returns dtype and shape, such as "float32 (2, 4)".
template <class Array>
std::string describe_array(const Array& array) {
  const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};  // DLPack's codes
  const nb::dlpack::dtype dtype = array.dtype();
  std::string text = dtype.code < std::size(kinds) ? kinds[dtype.code] : "unknown";
  text += std::to_string(dtype.bits) + " (";
  for (std::size_t i = 0; i < array.ndim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(array.shape(i));
  return text + ")";
}

template <class Array>
[[noreturn]] void wrong_shape(const char* name, const std::string& expected, const Array& found) {
  throw nb::value_error((std::string(name) + ": expected a C-contiguous array in main memory of shape " + expected +
                         ", found " + describe_array(found))
                            .c_str());
}

template <class Array>
bool is_plain_memory(const Array& array) {
  std::int64_t stride = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.size() > 0 && array.shape(i) != 1 && array.stride(i) != stride) return false;
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  return array.device_type() == nb::device::cpu::value;
}

template <class Array>
void check_dtype(const char* name, const Array& array, nb::dlpack::dtype dtype, const char* dtype_name) {
  if (array.dtype() == dtype) return;
  throw nb::type_error(
      (std::string(name) + ": expected dtype " + dtype_name + ", found " + describe_array(array)).c_str());
}

void check_fours(const char* name, const nb::ndarray<nb::ro>& array, std::size_t num_images) {
  if (array.ndim() == 2 && array.shape(0) == num_images && array.shape(1) == 4 && is_plain_memory(array)) return;
  wrong_shape(name, "(" + std::to_string(num_images) + ", 4)", array);
}

const RequestedPart* check_parts(const OptionalArray& parts, std::size_t num_images) {
  if (!parts) return nullptr;
  check_dtype("parts", *parts, nb::dtype<double>(), "float64");
  check_fours("parts", *parts, num_images);
  return static_cast<const RequestedPart*>(parts->data());
}

bool lies_within(const Place& place, const Target& target) noexcept {
  const std::int64_t right = std::int64_t{place.left} + place.width, bottom = std::int64_t{place.top} + place.height;
  return place.left >= 0 && place.top >= 0 && place.width >= 0 && place.height >= 0 && right <= target.width &&
         bottom <= target.height;
}

const Place* check_places(const OptionalArray& places, std::size_t num_images, const Target& target) {
  if (!places) return nullptr;
  check_dtype("places", *places, nb::dtype<std::int32_t>(), "int32");
  check_fours("places", *places, num_images);
  const auto* const first = static_cast<const Place*>(places->data());
  for (std::size_t i = 0; i < num_images; ++i) {
    if (!lies_within(first[i], target)) throw nb::value_error("places: expected left, top, width, height within out");
  }
  return first;
}

Target check_out(const nb::ndarray<>& out, std::size_t num_images) {
  check_dtype("out", out, nb::dtype<std::uint8_t>(), "uint8");
  const std::string expected =
      "(" + std::to_string(num_images) + ", H, W, 3) or (" + std::to_string(num_images) + ", 3, H, W)";
  if (out.ndim() != 4 || out.shape(0) != num_images || !is_plain_memory(out)) wrong_shape("out", expected, out);
  const bool channels_last = out.shape(3) == 3;
  if (!channels_last && out.shape(1) != 3) wrong_shape("out", expected, out);
  const std::size_t height = out.shape(channels_last ? 1 : 2);
  const std::size_t width = out.shape(channels_last ? 2 : 3);
  if (height == 0 || width == 0 || height > kMaxSide || width > kMaxSide) wrong_shape("out", expected, out);
  return {static_cast<std::uint8_t*>(out.data()), static_cast<std::uint32_t>(height), static_cast<std::uint32_t>(width),
          channels_last ? Layout::height_width_channels : Layout::channels_height_width};
}

}  // namespace

BufferView::BufferView(nb::handle object, int flags) {
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
}

BufferView::~BufferView() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

BufferView::BufferView(BufferView&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}

Bytes BufferView::bytes() const noexcept {
  return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
}

RgbPixels BufferView::pixels() const noexcept {
  return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.shape[0]),
          static_cast<std::size_t>(view_.shape[1])};
}

bool BufferView::holds_pixels() const noexcept {
  const bool bytes = view_.format == nullptr || std::strcmp(view_.format, "B") == 0;
  return bytes && view_.itemsize == 1 && view_.ndim == 3 && view_.shape[2] == 3;
}

std::vector<BufferView> view_all(const nb::list& buffers) {
  std::vector<BufferView> views;
  views.reserve(nb::len(buffers));
  for (nb::handle buffer : buffers) views.emplace_back(buffer);
  return views;
}

BufferView view_pixels(nb::handle image, const std::string& name) {
  BufferView view(image, PyBUF_ND | PyBUF_FORMAT);
  if (view.holds_pixels()) return view;
  throw nb::value_error((name + ": expected uint8 of shape (height, width, 3)").c_str());
}

std::vector<BufferView> view_all_pixels(const nb::list& images) {
  std::vector<BufferView> views;
  views.reserve(nb::len(images));
  for (nb::handle image : images) views.push_back(view_pixels(image, "image " + std::to_string(views.size())));
  return views;
}

Request BatchArrays::request(std::size_t i) const noexcept {
  return {boxes[i], parts == nullptr ? nullptr : parts + i, flips[i] != 0, filter};
}

Target BatchArrays::target(std::size_t i) const noexcept {
  const std::size_t image_bytes = std::size_t{3} * first.height * first.width;
  const Target whole{first.data + i * image_bytes, first.height, first.width, first.layout};
  return places == nullptr ? whole : whole.part(places[i]);
}

BatchArrays check_batch(std::size_t num_images, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter) {
  if (filter < 0 || filter > static_cast<int>(Filter::nearest)) throw nb::value_error("interpolation: expected 0 to 2");
  check_dtype("boxes", boxes, nb::dtype<std::int32_t>(), "int32");
  check_dtype("flips", flips, nb::dtype<bool>(), "bool");
  check_fours("boxes", boxes, num_images);
  if (flips.ndim() != 1 || flips.shape(0) != num_images || !is_plain_memory(flips)) {
    wrong_shape("flips", "(" + std::to_string(num_images) + ",)", flips);
  }
  const Target first = check_out(out, num_images);
  return {num_images,
          static_cast<const RequestedBox*>(boxes.data()),
          check_parts(parts, num_images),
          check_places(places, num_images, first),
          static_cast<const std::uint8_t*>(flips.data()),
          first,
          static_cast<Filter>(filter)};
}

nb::object to_array(Image image) {
  nb::capsule owner(image.data.get(), [](void* p) noexcept { AlignedDelete{}(static_cast<std::uint8_t*>(p)); });
  std::uint8_t* const data = image.data.release();
  return nb::ndarray<nb::numpy, std::uint8_t>(data, {image.height, image.width, 3}, owner).cast();
}

}  // namespace dlio
