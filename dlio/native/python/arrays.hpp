// Python's buffers and arrays, checked and seen as plain memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "image.hpp"
#include "resize/pixels.hpp"

namespace dlio {

namespace nb = nanobind;

// The bytes of a Python object with the buffer protocol, held for the view's life. Made and destroyed with the
// interpreter lock, read without.
class BufferView {
 public:
  explicit BufferView(nb::handle object, int flags = PyBUF_SIMPLE);  // raises TypeError, BufferError
  ~BufferView();
  BufferView(BufferView&& other) noexcept;
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  Bytes bytes() const noexcept;
  RgbPixels pixels() const noexcept;  // of a view of view_pixels
  bool holds_pixels() const noexcept;

 private:
  Py_buffer view_{};
};

// Raises as BufferView.
std::vector<BufferView> view_all(const nb::list& buffers);

// Raises as BufferView, and ValueError, which names the image, for anything but uint8 of shape (height, width, 3).
BufferView view_pixels(nb::handle image, const std::string& name);
std::vector<BufferView> view_all_pixels(const nb::list& images);

// The arguments of decode_batch and resize_batch.
struct BatchArrays {
  std::size_t num_images;
  const RequestedBox* boxes;
  const RequestedPart* parts;  // null: all of each box
  const Place* places;         // null: each fills its image
  const std::uint8_t* flips;
  Target first;  // of image 0; the others follow without gaps
  Filter filter;

  Request request(std::size_t i) const noexcept;
  Target target(std::size_t i) const noexcept;
};

using OptionalArray = std::optional<nb::ndarray<nb::ro>>;

// Raises TypeError for a wrong dtype, ValueError for a wrong shape, strides or device, each naming the argument.
BatchArrays check_batch(std::size_t num_images, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out, const OptionalArray& parts, const OptionalArray& places, int filter);

// Returns a new array of zeros, and sets `data` to them.
template <class Number>
nb::object new_array(std::initializer_list<std::size_t> shape, Number*& data) {
  std::size_t size = 1;
  for (const std::size_t length : shape) size *= length;
  auto numbers = std::make_unique<Number[]>(size);
  nb::capsule owner(numbers.get(), [](void* p) noexcept { delete[] static_cast<Number*>(p); });
  data = numbers.release();
  return nb::ndarray<nb::numpy, Number>(data, shape, owner).cast();
}

nb::object to_array(Image image);

}  // namespace dlio
