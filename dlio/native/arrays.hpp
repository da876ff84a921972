// Python's buffers and arrays, checked and seen as plain memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "decode.hpp"

namespace dlio {

namespace nb = nanobind;

// The bytes of a Python object with the buffer protocol, held for the view's life. Made and destroyed with the
// interpreter lock, read without.
class BufferView {
 public:
  explicit BufferView(nb::handle object);  // raises TypeError, BufferError
  ~BufferView();
  BufferView(BufferView&& other) noexcept;
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  Bytes bytes() const noexcept;

 private:
  Py_buffer view_{};
};

// Raises as BufferView.
std::vector<BufferView> view_all(const nb::list& buffers);

// The arguments of decode_batch and decode_parts.
struct BatchArrays {
  std::vector<BufferView> views;
  const RequestedBox* boxes;
  const RequestedPart* parts;  // null: all of each box
  const std::uint8_t* flips;
  Target first;  // of image 0; the others follow without gaps

  std::size_t size() const noexcept { return views.size(); }
  Request request(std::size_t i) const noexcept;
  Target target(std::size_t i) const noexcept;
};

// Both raise TypeError for a wrong dtype, ValueError for a wrong shape, strides or device, each naming the argument.
BatchArrays check_batch(const nb::list& buffers, const nb::ndarray<nb::ro>& boxes, const nb::ndarray<nb::ro>& flips,
                        const nb::ndarray<>& out);
const RequestedPart* check_parts(const nb::ndarray<nb::ro>& parts, std::size_t num_images);

// Returns a new array of zeros, and sets `data` to them.
template <class Number>
nb::object new_array(std::initializer_list<std::size_t> shape, Number*& data) {
  std::size_t size = 1;
  for (const std::size_t length : shape) size *= length;
  data = new Number[size]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<Number*>(p); });
  return nb::ndarray<nb::numpy, Number>(data, shape, owner).cast();
}

nb::object to_array(Image image);

}  // namespace dlio
