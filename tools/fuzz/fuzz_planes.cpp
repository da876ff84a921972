// One input of libFuzzer: 16 bytes of wishes, then a decode-ready record, whose checksum is repaired unless it is
// wished otherwise, or a JPEG to make one of. Every back end of the processor must see the same; the input has exactly
// the size it needs, so that AddressSanitizer sees the first byte beyond.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "crc32c/crc32c.hpp"
#include "jpeg/decode.hpp"
#include "jpeg/probe.hpp"
#include "planes/make.hpp"
#include "planes/record.hpp"
#include "processor.hpp"
#include "wishes.hpp"

namespace {

constexpr std::size_t kCrcBytes = 4;

struct Outcome {
  std::string error;
  std::vector<std::uint8_t> bytes;

  bool operator==(const Outcome& other) const { return error == other.error && bytes == other.bytes; }
};

template <class Body>
Outcome outcome_of(Body body) {
  try {
    return {"", body()};
  } catch (const dlio::JpegError& error) {
    require(*error.what() != 0, "an error has a message");
    return {error.what(), {}};
  }
}

std::vector<std::uint8_t> pixels_of(dlio::Bytes bytes) {
  const dlio::Image image = dlio::decode(bytes);
  return {image.data.get(), image.data.get() + std::size_t{3} * image.width * image.height};
}

std::vector<std::uint8_t> jpeg_of(dlio::Bytes record) {
  dlio::Scratch memory;
  const dlio::Bytes jpeg = dlio::from_planes(record, memory);
  return {jpeg.data, jpeg.data + jpeg.size};
}

// Decodes the wished box to its size, which must have the pixels of the whole picture.
void check_box(dlio::Bytes record, const std::uint8_t* wishes, const std::vector<std::uint8_t>& whole) {
  const dlio::Size size = dlio::measure(record);
  if (size.width == 0) return;  // no end in its trailer
  const auto image_width = static_cast<std::int32_t>(size.width), image_height = static_cast<std::int32_t>(size.height);
  const std::int32_t left = std::abs(wish(wishes, 0)) % image_width, top = std::abs(wish(wishes, 1)) % image_height;
  const std::int32_t width = 1 + std::abs(wish(wishes, 2)) % (image_width - left);
  const std::int32_t height = 1 + std::abs(wish(wishes, 3)) % (image_height - top);
  const auto row_bytes = std::size_t{3} * static_cast<std::size_t>(width);
  const Exact out(row_bytes * static_cast<std::size_t>(height));
  const dlio::Target target{out.data.get(), static_cast<std::uint32_t>(height), static_cast<std::uint32_t>(width),
                            dlio::Layout::height_width_channels};
  const dlio::Status status = dlio::decode_box(record, {{left, top, width, height}, nullptr, false}, target);
  require(whole.empty() || status == dlio::Status::decoded, "a box decodes where the whole picture does");
  for (std::int32_t y = 0; y < height && !whole.empty(); ++y) {
    const auto first =
        static_cast<std::size_t>(top + y) * static_cast<std::size_t>(image_width) + static_cast<std::size_t>(left);
    require(
        std::memcmp(out.data.get() + row_bytes * static_cast<std::size_t>(y), whole.data() + 3 * first, row_bytes) == 0,
        "a box has the pixels of the whole picture");
  }
}

void check_record(dlio::Bytes record, const std::uint8_t* wishes) {
  std::optional<Outcome> pixels, jpeg;
  for (const dlio::BackEnd back_end : dlio::back_ends()) {
    dlio::use_back_end(dlio::name_of(back_end));
    const Outcome seen = outcome_of([&] { return pixels_of(record); });
    const Outcome back = outcome_of([&] { return jpeg_of(record); });
    require(!pixels || (*pixels == seen && *jpeg == back), "all back ends see the same");
    pixels = seen;
    jpeg = back;
    check_box(record, wishes, seen.bytes);
  }
}

void seal(const Exact& record) {
  if (record.size < kCrcBytes) return;
  const std::size_t size = record.size - kCrcBytes;
  const std::uint32_t crc = dlio::extend_crc(0, reinterpret_cast<const char*>(record.data.get()), size);
  for (std::size_t i = 0; i < kCrcBytes; ++i) record.data[size + i] = static_cast<std::uint8_t>(crc >> 8 * i);
}

void check_jpeg(dlio::Bytes jpeg, const std::uint8_t* wishes) {
  std::vector<std::uint8_t> made;
  if (!dlio::to_planes(jpeg, made)) return;
  const Exact record(made.data(), made.size());
  check_record(record.bytes(), wishes);
  const std::vector<std::uint8_t> back = jpeg_of(record.bytes());
  const bool same = back.size() == jpeg.size && std::memcmp(back.data(), jpeg.data, jpeg.size) == 0;
  require(same || !dlio::restores_original(record.bytes()), "the file comes back");
  const Outcome pixels = outcome_of([&] { return pixels_of(jpeg); });
  require(pixels == outcome_of([&] { return pixels_of(record.bytes()); }), "a record has the pixels of its JPEG");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kWishBytes) return 0;
  const Exact copy(data + kWishBytes, size - kWishBytes);
  if (!dlio::is_planes(copy.bytes())) {
    check_jpeg(copy.bytes(), data);
    return 0;
  }
  if (data[13] % 8 != 0) seal(copy);
  check_record(copy.bytes(), data);
  return 0;
}
