// One input of libFuzzer: 16 bytes of wishes (box, output size, layout), then a JPEG. Goes through every entry point of
// the core, and stops where two ways to the same pixels disagree. Input, output and, under DLIO_SANITIZED, the core's
// own buffers have exactly the size they need, so that AddressSanitizer sees the first byte beyond.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "jpeg/codec.hpp"
#include "jpeg/crop_ready.hpp"
#include "jpeg/decode.hpp"
#include "jpeg/probe.hpp"
#include "planes/record.hpp"
#include "processor.hpp"
#include "wishes.hpp"

namespace {

constexpr std::uint32_t kLargestComparison = 1 << 20;  // pixels

// A picture of exactly the size of a target.
Exact decode_box(dlio::Bytes jpeg, const dlio::Request& request, dlio::Target target, dlio::Status& status) {
  Exact out(std::size_t{3} * target.height * target.width);
  target.data = out.data.get();
  status = dlio::decode_box(jpeg, request, target);
  return out;
}

std::optional<dlio::Image> decode_or_nothing(dlio::Bytes jpeg) {
  try {
    return dlio::decode(jpeg);
  } catch (const dlio::JpegError& error) {
    require(error.status() != dlio::Status::decoded && *error.what() != 0, "an error has a status and a message");
    return std::nullopt;
  }
}

// What decodes has the pixels of libjpeg alone, which finds no more damage: its JpegError would end the run.
void check_whole(dlio::Bytes jpeg, const std::optional<dlio::Image>& whole) {
  if (!whole || dlio::is_planes(jpeg)) return;
  const Exact row(std::size_t{3} * whole->width);
  bool same = true;
  dlio::OpenJpeg open(jpeg);
  jpeg_decompress_struct& info = open.info();
  open.trap().run([&] {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      const std::uint8_t* const ours = whole->data.get() + row.size * info.output_scanline;
      JSAMPROW theirs = row.data.get();
      jpeg_read_scanlines(&info, &theirs, 1);
      same = same && std::memcmp(ours, theirs, row.size) == 0;
    }
  });
  require(same, "an image has libjpeg's pixels");
}

// Decodes parts of the wished box: one between pixels, and all of it, which must give what the box alone gives.
void check_part(dlio::Bytes jpeg, const std::uint8_t* wishes, const dlio::Target& target) {
  const dlio::RequestedBox box{wish(wishes, 0), wish(wishes, 1), wish(wishes, 2), wish(wishes, 3)};
  const double width = box.width, height = box.height;
  dlio::Status status, other;
  const dlio::RequestedPart inner{wishes[14] / 300.0 * width, wishes[15] / 300.0 * height, width / 7, height / 9};
  decode_box(jpeg, {box, &inner, false}, target, status);
  const dlio::RequestedPart all{0, 0, width, height};
  const Exact with_part = decode_box(jpeg, {box, &all, false}, target, status);
  const Exact without = decode_box(jpeg, {box, nullptr, false}, target, other);
  require(status == other, "a part that is all of the box has the box's status");
  const bool same = std::equal(without.data.get(), without.data.get() + without.size, with_part.data.get());
  require(status != dlio::Status::decoded || same, "a part that is all of the box has the box's pixels");
}

// Decodes the wished box to the wished size, and to its own size, which must give the pixels of the whole image.
void check_box(dlio::Bytes jpeg, const std::uint8_t* wishes, const std::optional<dlio::Image>& whole) {
  const std::uint32_t height = 1 + static_cast<std::uint32_t>(wish(wishes, 4)) % 64;
  const std::uint32_t width = 1 + static_cast<std::uint32_t>(wish(wishes, 5)) % 64;
  const auto layout = wishes[12] % 2 ? dlio::Layout::height_width_channels : dlio::Layout::channels_height_width;
  const dlio::RequestedBox box{wish(wishes, 0), wish(wishes, 1), wish(wishes, 2), wish(wishes, 3)};
  dlio::Status status;
  decode_box(jpeg, {box, nullptr, wishes[13] % 2 == 1}, {nullptr, height, width, layout}, status);
  check_part(jpeg, wishes, {nullptr, height, width, layout});
  if (!whole || std::uint64_t{whole->width} * whole->height > kLargestComparison) return;

  const auto image_width = static_cast<std::int32_t>(whole->width);
  const auto image_height = static_cast<std::int32_t>(whole->height);
  const std::int32_t left = std::abs(box.left) % image_width, top = std::abs(box.top) % image_height;
  const dlio::RequestedBox inside{left, top, 1 + std::abs(box.width) % (image_width - left),
                                  1 + std::abs(box.height) % (image_height - top)};
  const std::size_t row_bytes = std::size_t{3} * static_cast<std::uint32_t>(inside.width);
  const dlio::Target own_size{nullptr, static_cast<std::uint32_t>(inside.height),
                              static_cast<std::uint32_t>(inside.width), dlio::Layout::height_width_channels};
  const Exact out = decode_box(jpeg, {inside, nullptr, false}, own_size, status);
  require(status == dlio::Status::decoded, "a box decodes where the whole image does");
  for (std::int32_t y = 0; y < inside.height; ++y) {
    const std::uint8_t* row = out.data.get() + row_bytes * static_cast<std::size_t>(y);
    const auto first_pixel = static_cast<std::size_t>(top + y) * whole->width + static_cast<std::size_t>(left);
    require(std::memcmp(row, whole->data.get() + 3 * first_pixel, row_bytes) == 0,
            "a box has the pixels of the whole image");
  }
}

void check_rewritten(dlio::Bytes jpeg, const std::uint8_t* wishes, const std::optional<dlio::Image>& whole) {
  dlio::Scratch memory;
  const std::optional<dlio::Bytes> rewritten = dlio::make_crop_ready(jpeg, memory);
  if (!rewritten) return;
  const Exact copy(rewritten->data, rewritten->size);
  const dlio::Bytes ready = copy.bytes();
  const dlio::Probe found = dlio::probe(ready);
  require(found.crop_ready && found.complete, "a rewritten JPEG is crop-ready and whole");
  require(!dlio::make_crop_ready(ready, memory), "a rewritten JPEG is not rewritten again");
  const std::optional<dlio::Image> same = decode_or_nothing(ready);
  if (whole) {
    require(same && same->width == whole->width && same->height == whole->height, "a rewritten JPEG decodes");
    const std::size_t size = std::size_t{3} * whole->width * whole->height;
    require(std::memcmp(same->data.get(), whole->data.get(), size) == 0, "a rewritten JPEG has the same pixels");
  }
  check_box(ready, wishes, same);
}

class Rows final : public dlio::PixelRows {
 public:
  Rows(const std::uint8_t* pixels, std::uint32_t row_width, std::uint32_t num_rows) noexcept
      : PixelRows(row_width, num_rows), next_(pixels) {}

  const std::uint8_t* next() override {
    const std::uint8_t* const row = next_;
    next_ += std::size_t{4} * width;
    return row;
  }

 private:
  const std::uint8_t* next_;
};

// Takes the bytes for pixels, and resizes them by every back end to the wished size.
void check_resize(dlio::Bytes bytes, const std::uint8_t* wishes) {
  const std::uint32_t input_width = 1 + static_cast<std::uint32_t>(wish(wishes, 0)) % 300;
  const auto input_height = static_cast<std::uint32_t>(bytes.size / 4 / input_width);
  if (input_height == 0) return;
  const std::uint32_t height = 1 + static_cast<std::uint32_t>(wish(wishes, 4)) % 64;
  const std::uint32_t width = 1 + static_cast<std::uint32_t>(wish(wishes, 5)) % 64;
  const auto layout = wishes[12] % 2 ? dlio::Layout::height_width_channels : dlio::Layout::channels_height_width;
  const std::size_t num_bytes = std::size_t{4} * input_width * input_height;
  Exact readable(num_bytes + dlio::kPixelsReadAhead);
  std::copy_n(bytes.data, num_bytes, readable.data.get());
  const dlio::Part part{{wishes[14] / 300.0 * input_width, input_width / 7.0}, {0, double(input_height)}};
  std::vector<std::uint8_t> first;
  for (const dlio::BackEnd back_end : dlio::back_ends()) {
    dlio::use_back_end(dlio::name_of(back_end));
    Rows rows(readable.data.get(), input_width, input_height);
    const Exact resized(std::size_t{3} * height * width);
    dlio::resize(rows, part, wishes[13] % 2 == 1, {resized.data.get(), height, width, layout});
    if (first.empty()) first.assign(resized.data.get(), resized.data.get() + resized.size);
    require(std::memcmp(first.data(), resized.data.get(), first.size()) == 0, "a resize is the same by any back end");
  }
  dlio::use_back_end(dlio::name_of(dlio::back_ends()[wishes[15] % dlio::back_ends().size()]));
}

void check_size(dlio::Bytes jpeg) {
  const dlio::Size size = dlio::measure(jpeg);
  try {
    const dlio::Probe found = dlio::probe(jpeg);
    const std::int64_t height = found.complete ? found.height : 0, width = found.complete ? found.width : 0;
    require(size.height == height && size.width == width, "measure finds what probe does");
  } catch (const dlio::JpegError&) {
    require(size.height == 0 && size.width == 0, "measure refuses what probe does");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kWishBytes) return 0;
  const Exact copy(data + kWishBytes, size - kWishBytes);
  const dlio::Bytes jpeg = copy.bytes();
  check_size(jpeg);
  check_resize(jpeg, data);
  const std::optional<dlio::Image> whole = decode_or_nothing(jpeg);
  check_whole(jpeg, whole);
  check_box(jpeg, data, whole);
  check_rewritten(jpeg, data, whole);
  return 0;
}
