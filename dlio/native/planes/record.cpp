#include "planes/record.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "crc32c/crc32c.hpp"
#include "planes/presets.hpp"
#include "planes/standard_tables.hpp"

namespace dlio {
namespace {

constexpr std::uint8_t kMagic[] = {0x8A, 'D', 'R', 'J'};
constexpr std::uint8_t kVersion = 1;

// Offsets within a record.
constexpr std::size_t kVersionAt = 4, kFlagsAt = 5, kPresetAt = 6, kTileMcusAt = 7, kHeaderSizeAt = 8,
                      kTrailerSizeAt = 12, kHeaderAt = 16;
constexpr std::size_t kCrcBytes = 4, kTileSizeBytes = 2;

std::uint32_t little_endian(const std::uint8_t* bytes, int size) noexcept {
  std::uint32_t number = 0;
  for (int i = size; i-- > 0;) number = number << 8 | bytes[i];
  return number;
}

void append(std::vector<std::uint8_t>& out, std::uint32_t number, int size) {
  for (int i = 0; i < size; ++i) out.push_back(static_cast<std::uint8_t>(number >> 8 * i));
}

void append(std::vector<std::uint8_t>& out, Bytes bytes) { out.insert(out.end(), bytes.data, bytes.data + bytes.size); }

std::uint32_t checksum(const std::uint8_t* data, std::size_t size) noexcept {
  return extend_crc(0, reinterpret_cast<const char*>(data), size);
}

[[noreturn]] void fail(const std::string& what) { throw JpegError(Status::damaged, "decode-ready record: " + what); }

// Throws where the fields of a fixed size are not sound.
void parse_fields(Bytes bytes, Record& record) {
  if (!is_planes(bytes)) throw JpegError(Status::not_jpeg, "no decode-ready record of version 1");
  if (bytes.size < kHeaderAt + kCrcBytes) fail("it ends within its first " + std::to_string(kHeaderAt) + " bytes");
  record.flags = bytes.data[kFlagsAt];
  record.preset = bytes.data[kPresetAt];
  record.tile_mcus = bytes.data[kTileMcusAt];
  if ((record.flags & ~kKnownFlags) != 0) fail("flags " + std::to_string(record.flags) + ", expected 0 to 3");
  if (record.preset >= num_presets()) {
    fail("preset " + std::to_string(record.preset) + ", known are " + std::to_string(num_presets()));
  }
  if (record.tile_mcus < 1 || record.tile_mcus > kMaxTileMcus) {
    fail("tiles of " + std::to_string(record.tile_mcus) + " MCUs, expected 1 to " + std::to_string(kMaxTileMcus));
  }
}

// Sets where each tile begins. Throws where all of them do not fill the bytes that are left.
void find_tiles(Bytes sizes_and_tiles, Record& record) {
  const Frame tiled = record.tiled();
  const std::size_t num_tiles = std::size_t{tiled.tile_columns()} * tiled.tile_rows();
  if (num_tiles > sizes_and_tiles.size / kTileSizeBytes) {
    fail(std::to_string(num_tiles) + " tiles of the image, but " + std::to_string(sizes_and_tiles.size) + " bytes");
  }
  record.begins.resize(num_tiles + 1);
  std::size_t end = 0;
  for (std::size_t i = 0; i < num_tiles; ++i) {
    record.begins[i] = static_cast<std::uint32_t>(end);
    end += little_endian(sizes_and_tiles.data + i * kTileSizeBytes, kTileSizeBytes);
  }
  record.tiles = {sizes_and_tiles.data + num_tiles * kTileSizeBytes, sizes_and_tiles.size - num_tiles * kTileSizeBytes};
  if (end != record.tiles.size) {
    fail("its tiles have " + std::to_string(end) + " bytes by their sizes, " + std::to_string(record.tiles.size) +
         " are there");
  }
  record.begins[num_tiles] = static_cast<std::uint32_t>(end);
}

}  // namespace

Frame Record::tiled() const noexcept {
  Frame tiled = frame;
  tiled.restart_interval = tile_mcus;
  return tiled;
}

bool is_planes(Bytes bytes) noexcept {
  return bytes.size > kVersionAt && std::memcmp(bytes.data, kMagic, sizeof kMagic) == 0 &&
         bytes.data[kVersionAt] == kVersion;
}

bool restores_original(Bytes bytes) noexcept {
  return is_planes(bytes) && bytes.size > kFlagsAt && (bytes.data[kFlagsAt] & kOfProgressive) == 0;
}

void parse_record(Bytes bytes, Record& record) {
  parse_fields(bytes, record);
  const std::size_t body = bytes.size - kHeaderAt - kCrcBytes;
  const std::size_t header = little_endian(bytes.data + kHeaderSizeAt, 4);
  const std::size_t trailer = little_endian(bytes.data + kTrailerSizeAt, 4);
  if (bytes.size > UINT32_MAX || header > body || trailer > body - header) {
    fail("a header of " + std::to_string(header) + " and a trailer of " + std::to_string(trailer) +
         " bytes, but only " + std::to_string(body) + " are there");
  }
  record.header = {bytes.data + kHeaderAt, header};
  record.trailer = {record.header.data + header, trailer};
  const std::optional<Frame> frame = parse_frame(record.header);
  if (!frame || frame->scan != header) fail("its header is not that of a baseline JPEG of one scan");
  record.frame = *frame;
  check_pixels(frame->width, frame->height);
  if (!parse_mcu(record.header, record.frame, record.mcu)) fail("its header has a sampling that no record has");
  find_tiles({record.trailer.data + trailer, body - header - trailer}, record);
}

void require_checksum(Bytes bytes) {
  const std::size_t size = bytes.size - kCrcBytes;
  const std::uint32_t found = checksum(bytes.data, size), expected = little_endian(bytes.data + size, kCrcBytes);
  if (found == expected) return;
  fail("CRC-32C " + std::to_string(found) + " of its bytes, expected " + std::to_string(expected) +
       ": its bytes were changed");
}

std::size_t standard_tables_size(Bytes header, const Frame& frame, const Mcu& mcu) noexcept {
  const std::size_t sos_size = 8 + 2 * static_cast<std::size_t>(mcu.num_components);
  const Bytes tables = standard_tables(mcu.num_components);
  if (frame.scan < sos_size + tables.size) return 0;
  const std::uint8_t* const at = header.data + frame.scan - sos_size - tables.size;
  return std::memcmp(at, tables.data, tables.size) == 0 ? tables.size : 0;
}

Bytes full_header(const Record& record, Scratch& out) {
  const Bytes tables = (record.flags & kStandardTables) != 0 ? standard_tables(record.mcu.num_components) : Bytes{};
  const std::size_t sos_size = 8 + 2 * static_cast<std::size_t>(record.mcu.num_components);
  const std::uint8_t* const begin = record.header.data;
  const std::uint8_t* const end = begin + record.header.size;
  std::uint8_t* const bytes = out.at_least(record.header.size + tables.size);
  std::uint8_t* at = std::copy(begin, end - sos_size, bytes);
  if (tables.size > 0) at = std::copy_n(tables.data, tables.size, at);
  std::copy(end - sos_size, end, at);
  return {bytes, record.header.size + tables.size};
}

void write_record(const RecordParts& parts, std::vector<std::uint8_t>& out) {
  out.assign(kMagic, kMagic + sizeof kMagic);
  for (const std::uint8_t byte : {kVersion, parts.flags, parts.preset, parts.tile_mcus}) out.push_back(byte);
  append(out, static_cast<std::uint32_t>(parts.header.size), 4);
  append(out, static_cast<std::uint32_t>(parts.trailer.size), 4);
  append(out, parts.header);
  append(out, parts.trailer);
  for (const std::uint16_t size : parts.tile_sizes) append(out, size, kTileSizeBytes);
  append(out, parts.tiles);
  append(out, checksum(out.data(), out.size()), kCrcBytes);
}

}  // namespace dlio
