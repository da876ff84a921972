// Decode-ready records: a JPEG's header and trailer as they are, its coefficients in tiles of bit planes.
// docs/reference/decode-ready.md describes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image.hpp"
#include "jpeg/mcu.hpp"
#include "jpeg/scan.hpp"
#include "memory.hpp"

namespace dlio {

constexpr std::uint32_t kMaxTileMcus = kMaxRunMcus;

enum RecordFlags : std::uint8_t {
  kOfProgressive = 1,   // the original was progressive: the baseline JPEG of equal coefficients comes back
  kStandardTables = 2,  // the standard Huffman tables stood before SOS, and are cut out
  kKnownFlags = kOfProgressive | kStandardTables,
};

// A record whose structure is sound, within the bytes that it was made from.
struct Record {
  std::uint8_t flags;
  std::uint8_t preset;
  Bytes header;   // from SOI to the end of SOS, without the standard tables where they are cut out
  Bytes trailer;  // what follows the entropy-coded data
  Bytes tiles;
  Frame frame;  // of the header; its restart interval is the original's
  Mcu mcu{};
  std::uint32_t tile_mcus;
  std::vector<std::uint32_t> begins;  // of the tiles within `tiles`, and the end of the last one

  // The frame as if a restart interval was a tile.
  Frame tiled() const noexcept;
  void trim() noexcept { trim_kept(begins); }
};

// The memory that reading a record needs, kept from one to the next.
struct RecordWorkspace {
  Record record;
  Scratch header;

  void trim() noexcept {
    record.trim();
    header.trim();
  }
};

// Whether the bytes begin as a record of a version that this core reads.
bool is_planes(Bytes bytes) noexcept;

// Whether from_planes gives the file that a record was made of; false for bytes that are none.
bool restores_original(Bytes bytes) noexcept;

// Checks the structure, not the checksum. Throws JpegError, std::bad_alloc.
void parse_record(Bytes bytes, Record& record);

// Throws JpegError where the checksum is another than that of the bytes before it.
void require_checksum(Bytes bytes);

// Returns the JPEG's header with all its tables in `out`.
Bytes full_header(const Record& record, Scratch& out);

// Whether a header has the standard tables at its end, before SOS; and how many bytes they take.
std::size_t standard_tables_size(Bytes header, const Frame& frame, const Mcu& mcu) noexcept;

struct RecordParts {
  std::uint8_t flags;
  std::uint8_t preset;
  std::uint8_t tile_mcus;
  Bytes header;
  Bytes trailer;
  const std::vector<std::uint16_t>& tile_sizes;
  Bytes tiles;
};

// Writes a record with its checksum.
void write_record(const RecordParts& parts, std::vector<std::uint8_t>& out);

}  // namespace dlio
