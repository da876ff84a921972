// One input of libFuzzer: 16 bytes of wishes (box, output size, layout), then a JPEG. Goes through every entry point of
// the core, and stops where two ways to the same pixels disagree.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "../../dlio/native/crop_ready.hpp"
#include "../../dlio/native/decode.hpp"
#include "../../dlio/native/probe.hpp"

namespace {

constexpr std::size_t kWishBytes = 16;
constexpr std::uint32_t kLargestComparison = 1 << 20;  // pixels

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

std::int32_t wish(const std::uint8_t* bytes, int number) {
  std::int16_t value;
  std::memcpy(&value, bytes + 2 * number, sizeof value);
  return value;
}

std::optional<dlio::Image> decode_or_nothing(dlio::Bytes jpeg) {
  try {
    return dlio::decode(jpeg);
  } catch (const dlio::JpegError& error) {
    require(error.status() != dlio::Status::decoded && *error.what() != 0, "an error has a status and a message");
    return std::nullopt;
  }
}

// Decodes the wished box to the wished size, and to its own size, which must give the pixels of the whole image.
void check_box(dlio::Bytes jpeg, const std::uint8_t* wishes, const std::optional<dlio::Image>& whole) {
  const std::uint32_t height = 1 + static_cast<std::uint32_t>(wish(wishes, 4)) % 64;
  const std::uint32_t width = 1 + static_cast<std::uint32_t>(wish(wishes, 5)) % 64;
  const auto layout = wishes[12] % 2 ? dlio::Layout::height_width_channels : dlio::Layout::channels_height_width;
  const dlio::RequestedBox box{wish(wishes, 0), wish(wishes, 1), wish(wishes, 2), wish(wishes, 3)};
  std::vector<std::uint8_t> out(std::size_t{3} * height * width);
  dlio::decode_box(jpeg, box, wishes[13] % 2, {out.data(), height, width, layout});
  if (!whole || std::uint64_t{whole->width} * whole->height > kLargestComparison) return;

  const auto image_width = static_cast<std::int32_t>(whole->width);
  const auto image_height = static_cast<std::int32_t>(whole->height);
  const std::int32_t left = std::abs(box.left) % image_width, top = std::abs(box.top) % image_height;
  const dlio::RequestedBox inside{left, top, 1 + std::abs(box.width) % (image_width - left),
                                  1 + std::abs(box.height) % (image_height - top)};
  const std::size_t row_bytes = std::size_t{3} * static_cast<std::uint32_t>(inside.width);
  out.resize(row_bytes * static_cast<std::uint32_t>(inside.height));
  const dlio::Target target{out.data(), static_cast<std::uint32_t>(inside.height),
                            static_cast<std::uint32_t>(inside.width), dlio::Layout::height_width_channels};
  if (dlio::decode_box(jpeg, inside, false, target) != dlio::Status::decoded) return;  // ours finds more damage
  for (std::int32_t y = 0; y < inside.height; ++y) {
    const std::uint8_t* row = out.data() + row_bytes * static_cast<std::size_t>(y);
    const auto first_pixel = static_cast<std::size_t>(top + y) * whole->width + static_cast<std::size_t>(left);
    require(std::memcmp(row, whole->data.get() + 3 * first_pixel, row_bytes) == 0,
            "a box has the pixels of the whole image");
  }
}

void check_rewritten(dlio::Bytes jpeg, const std::uint8_t* wishes, const std::optional<dlio::Image>& whole) {
  const std::optional<dlio::Bytes> rewritten = dlio::make_crop_ready(jpeg);
  if (!rewritten) return;
  const std::vector<std::uint8_t> copy(rewritten->data, rewritten->data + rewritten->size);
  const dlio::Bytes ready{copy.data(), copy.size()};
  require(dlio::probe(ready).crop_ready, "a rewritten JPEG is crop-ready");
  require(!dlio::make_crop_ready(ready), "a rewritten JPEG is not rewritten again");
  const std::optional<dlio::Image> same = decode_or_nothing(ready);
  if (whole) {
    require(same && same->width == whole->width && same->height == whole->height, "a rewritten JPEG decodes");
    const std::size_t size = std::size_t{3} * whole->width * whole->height;
    require(std::memcmp(same->data.get(), whole->data.get(), size) == 0, "a rewritten JPEG has the same pixels");
  }
  check_box(ready, wishes, same);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kWishBytes) return 0;
  const std::vector<std::uint8_t> copy(data + kWishBytes, data + size);  // ends where the sanitizer sees it
  const dlio::Bytes jpeg{copy.data(), copy.size()};
  try {
    dlio::probe(jpeg);
  } catch (const dlio::JpegError&) {
  }
  const std::optional<dlio::Image> whole = decode_or_nothing(jpeg);
  check_box(jpeg, data, whole);
  check_rewritten(jpeg, data, whole);
  return 0;
}
