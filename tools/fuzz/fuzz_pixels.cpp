// One input of libFuzzer: 16 bytes of wishes (sizes, places, steps), then pixels, which are resized into a part of a
// picture, adjusted, changed by an operation of augmentation, and mixed, in either layout.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "augment/mix.hpp"
#include "augment/operations.hpp"
#include "colors.hpp"
#include "image.hpp"
#include "resize/pixels.hpp"
#include "wishes.hpp"

namespace {

// Takes the bytes for pixels, and places those of the wished box in a larger picture, which stays as it was outside
// them.
void check_place(dlio::Bytes bytes, const std::uint8_t* wishes) {
  const std::size_t input_width = 1 + static_cast<std::uint32_t>(wish(wishes, 0)) % 60;
  const dlio::RgbPixels pixels{bytes.data, bytes.size / 3 / input_width, input_width};
  if (pixels.height == 0) return;
  const std::uint32_t height = 1 + static_cast<std::uint32_t>(wish(wishes, 4)) % 64;
  const std::uint32_t width = 1 + static_cast<std::uint32_t>(wish(wishes, 5)) % 64;
  const std::uint32_t left = wishes[14] % 16, top = wishes[15] % 16, right = wishes[2] % 16, bottom = wishes[3] % 16;
  const auto layout = wishes[12] % 2 ? dlio::Layout::height_width_channels : dlio::Layout::channels_height_width;
  const dlio::Request request{
      {0, 0, static_cast<std::int32_t>(input_width), static_cast<std::int32_t>(pixels.height)}, nullptr, false};
  const dlio::Target own{nullptr, height, width, layout};
  Exact alone(std::size_t{3} * height * width);
  dlio::Target target = own;
  target.data = alone.data.get();
  require(dlio::resize_box(pixels, request, target) == dlio::Status::decoded, "all pixels are resized");
  Exact picture(std::size_t{3} * (top + height + bottom) * (left + width + right));
  std::fill_n(picture.data.get(), picture.size, wishes[13]);
  const dlio::Target whole{picture.data.get(), top + height + bottom, left + width + right, layout};
  const dlio::Target part = whole.part({static_cast<std::int32_t>(left), static_cast<std::int32_t>(top),
                                        static_cast<std::int32_t>(width), static_cast<std::int32_t>(height)});
  require(dlio::resize_box(pixels, request, part) == dlio::Status::decoded, "all pixels are placed");
  const bool is_planar = layout == dlio::Layout::channels_height_width;
  std::size_t num_changed = 0;
  for (std::size_t plane = 0; plane < (is_planar ? 3 : 1); ++plane) {
    for (std::size_t y = 0; y < height; ++y) {
      const std::size_t row_bytes = width * part.pixel_bytes();
      require(std::memcmp(part.row(plane, y), target.row(plane, y), row_bytes) == 0, "a place has the same pixels");
      for (std::size_t i = 0; i < row_bytes; ++i) part.row(plane, y)[i] = wishes[13];
    }
  }
  for (std::size_t i = 0; i < picture.size; ++i) num_changed += picture.data[i] != wishes[13];
  require(num_changed == 0, "a picture stays as it was next to a place");
}

// Takes the bytes for pixels of either layout, which an adjustment must change alike.
void check_colors(dlio::Bytes bytes, const std::uint8_t* wishes) {
  const std::size_t count = bytes.size / 3;
  Exact last(bytes.data, 3 * count), first(3 * count);
  const auto move = [count](const Exact& from, std::size_t step, const Exact& to, std::size_t channel) {
    const std::size_t other_step = step == 3 ? 1 : 3, other_channel = step == 3 ? count : 1;
    for (std::size_t i = 0; i < 3 * count; ++i) {
      to.data[i / 3 * other_step + i % 3 * other_channel] = from.data[i / 3 * step + i % 3 * channel];
    }
  };
  move(last, 3, first, 1);
  float factor;
  std::memcpy(&factor, wishes, sizeof factor);
  const auto step = static_cast<dlio::ColorStep>(wishes[12] % 3);
  if (factor != factor) factor = 0.5F;
  dlio::adjust({last.data.get(), count, 3, 1}, step, factor);
  dlio::adjust({first.data.get(), count, 1, count}, step, factor);
  const Exact same(3 * count);
  move(first, 1, same, count);
  require(std::memcmp(same.data.get(), last.data.get(), 3 * count) == 0, "an adjustment is the same in either layout");
}

// Takes the bytes for pixels of either layout, which an operation must change alike, and a mixture of two images.
void check_operations(dlio::Bytes bytes, const std::uint8_t* wishes) {
  const std::size_t width = 1 + wishes[0] % 40, height = bytes.size / 3 / width / 2, count = height * width;
  if (height == 0) return;
  Exact last(bytes.data, 6 * count), first(6 * count);
  const auto other = [count](std::size_t i) {
    return i / (3 * count) * 3 * count + i % 3 * count + i % (3 * count) / 3;
  };
  for (std::size_t i = 0; i < 6 * count; ++i) first.data[other(i)] = last.data[i];
  dlio::Numbers numbers{};
  for (int i = 0; i < 6; ++i) numbers[i] = wish(wishes, i + 1) / (wishes[15] % 2 ? 256.0 : 8192.0);
  for (int i = 6; i < 9; ++i) numbers[i] = wishes[i];
  const std::uint8_t operation = wishes[14] % 11;
  dlio::AugmentMemory memory;
  const dlio::Picture planar{first.data.get(), height, width, true}, plain{last.data.get(), height, width, false};
  if (dlio::is_possible(operation, numbers)) {
    dlio::change(plain, static_cast<dlio::Operation>(operation), numbers, memory);
    dlio::change(planar, static_cast<dlio::Operation>(operation), numbers, memory);
  }
  const dlio::Mixed mixed[] = {{wishes[1] / 255.0, 0, 0, 0, 0},
                               {1, wishes[2] % height, wishes[3] % width, height, width - wishes[4] % width}};
  dlio::mix(plain, 2, mixed, memory);
  dlio::mix(planar, 2, mixed, memory);
  for (std::size_t i = 0; i < 6 * count; ++i) {
    require(first.data[other(i)] == last.data[i], "an operation is the same in either layout");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kWishBytes) return 0;
  const Exact copy(data + kWishBytes, size - kWishBytes);
  check_place(copy.bytes(), data);
  check_colors(copy.bytes(), data);
  check_operations(copy.bytes(), data);
  return 0;
}
