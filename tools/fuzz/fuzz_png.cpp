// One input of libFuzzer: 4 bytes of wishes (size, colours), then a content. The core's PNG decoder gets a PNG with
// right checksums whose compressed pixels are the content, and one whose compressed rows are.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include <libdeflate.h>

#include "png/png.hpp"

namespace {

using Content = std::vector<std::uint8_t>;

void append_32(Content& out, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(number >> shift));
}

void append_chunk(Content& out, const char* name, const Content& content) {
  append_32(out, static_cast<std::uint32_t>(content.size()));
  const std::size_t begin = out.size();
  out.insert(out.end(), name, name + 4);
  out.insert(out.end(), content.begin(), content.end());
  append_32(out, libdeflate_crc32(0, out.data() + begin, out.size() - begin));
}

// A PNG of exactly this size, its compressed pixels in two chunks.
Content png_of(const std::uint8_t* wishes, const Content& compressed) {
  Content png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header;
  append_32(header, wishes[0]);
  append_32(header, wishes[1]);
  const std::uint8_t rest[] = {8, static_cast<std::uint8_t>(wishes[2] % 3), 0, 0, 0};
  header.insert(header.end(), rest, rest + sizeof rest);
  append_chunk(png, "IHDR", header);
  const auto middle = compressed.begin() + static_cast<std::ptrdiff_t>(compressed.size() * wishes[3] / 256);
  append_chunk(png, "IDAT", {compressed.begin(), middle});
  append_chunk(png, "IDAT", {middle, compressed.end()});
  append_chunk(png, "IEND", {});
  png.shrink_to_fit();
  return png;
}

Content compress(const Content& rows) {
  libdeflate_compressor* const compressor = libdeflate_alloc_compressor(1);
  Content packed(libdeflate_zlib_compress_bound(compressor, rows.size()));
  packed.resize(libdeflate_zlib_compress(compressor, rows.data(), rows.size(), packed.data(), packed.size()));
  libdeflate_free_compressor(compressor);
  return packed;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const Content content(data + 4, data + size);
  dlio::decode_png({content.data(), content.size()});
  const Content raw = png_of(data, content);
  dlio::decode_png({raw.data(), raw.size()});
  Content rows = content;
  rows.resize(data[1] * (1 + data[0] * std::size_t{data[2] % 3 == 2 ? 3u : 1u}));
  for (std::size_t y = 0; y < data[1]; ++y) rows[y * (rows.size() / data[1])] %= 6;
  const Content png = png_of(data, compress(rows));
  const std::optional<dlio::Image> image = dlio::decode_png({png.data(), png.size()});
  const bool is_plain = data[2] % 3 != 1 && data[0] > 0 && data[1] > 0;
  require(!image || is_plain, "only plain PNGs are decoded");
  require(!image || (image->width == data[0] && image->height == data[1]), "an image has the size of its header");
  return 0;
}
