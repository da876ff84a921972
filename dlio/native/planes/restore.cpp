#include <algorithm>
#include <string>

#include "planes/make.hpp"
#include "planes/scan_writer.hpp"
#include "planes/tile_reader.hpp"

namespace dlio {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{1} << 16;

// Sets the writer's tables to those of the header.
void take_tables(Bytes header, const Record& record, ScanWriter& writer) {
  OpenJpeg open(header, Markers::none, record.tiles.size);
  const jpeg_decompress_struct& info = open.info();
  for (int i = 0; i < record.mcu.num_components; ++i) {
    const jpeg_component_info& component = *info.cur_comp_info[i];
    const auto valid = [](int table) { return table >= 0 && table < NUM_HUFF_TBLS; };
    const JHUFF_TBL* const dc = valid(component.dc_tbl_no) ? info.dc_huff_tbl_ptrs[component.dc_tbl_no] : nullptr;
    const JHUFF_TBL* const ac = valid(component.ac_tbl_no) ? info.ac_huff_tbl_ptrs[component.ac_tbl_no] : nullptr;
    if (dc == nullptr || ac == nullptr) {
      throw JpegError(Status::broken, "decode-ready record: its header lacks a Huffman table");
    }
    writer.set_tables(i, *dc, *ac);
  }
}

std::size_t write_scan(const Record& record, ScanWriter& writer) {
  TileReader reader(record);
  const Frame& frame = record.frame;
  std::uint32_t in_interval = 0, interval = 0;
  for (std::size_t tile = 0; tile < reader.num_tiles(); ++tile) {
    const std::int16_t* blocks = reader.read(tile);
    if (blocks == nullptr) {
      throw JpegError(Status::damaged,
                      "decode-ready record: tile " + std::to_string(tile) + " does not end where its size says");
    }
    const std::uint32_t num_mcus = reader.num_mcus(tile);
    for (std::uint32_t i = 0; i < num_mcus; ++i, ++in_interval, blocks += record.mcu.num_blocks * kBlockSize) {
      if (frame.restart_interval > 0 && in_interval == frame.restart_interval) {
        writer.append_restart(interval++);
        in_interval = 0;
      }
      writer.append(blocks, record.mcu);
    }
  }
  return writer.finish();
}

}  // namespace

Bytes from_planes(Bytes bytes, Scratch& out) {
  Kept<RecordWorkspace> work;
  Record& record = work->record;
  parse_record(bytes, record);
  require_checksum(bytes);
  const Bytes header = full_header(record, work->header);
  out.at_least(std::max(kFirstBytes, 2 * (header.size + record.tiles.size)));
  std::copy_n(header.data, header.size, out.data());
  ScanWriter writer(out, header.size);
  take_tables(header, record, writer);
  const std::size_t size = write_scan(record, writer);
  if (!out.grow(size + record.trailer.size, size)) throw std::bad_alloc();
  std::copy_n(record.trailer.data, record.trailer.size, out.data() + size);
  return {out.data(), size + record.trailer.size};
}

}  // namespace dlio
