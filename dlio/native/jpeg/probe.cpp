#include "jpeg/probe.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "jpeg/exif.hpp"
#include "jpeg/scan.hpp"
#include "planes/record.hpp"

namespace dlio {
namespace {

bool is_sampled(const jpeg_component_info& component, int horizontal, int vertical) noexcept {
  return component.h_samp_factor == horizontal && component.v_samp_factor == vertical;
}

// Names the luma's resolution over the chroma's, which must be sampled once in each direction.
std::string subsampling_of(const jpeg_decompress_struct& jpeg) {
  if (jpeg.num_components == 1) return "grey";
  const jpeg_component_info* components = jpeg.comp_info;
  if (jpeg.num_components < 3 || !is_sampled(components[1], 1, 1) || !is_sampled(components[2], 1, 1)) return "other";
  if (is_sampled(components[0], 1, 1)) return "4:4:4";
  if (is_sampled(components[0], 2, 1)) return "4:2:2";
  if (is_sampled(components[0], 2, 2)) return "4:2:0";
  if (is_sampled(components[0], 1, 2)) return "4:4:0";
  if (is_sampled(components[0], 4, 1)) return "4:1:1";
  return "other";
}

int find_orientation(const jpeg_decompress_struct& jpeg) noexcept {
  for (jpeg_saved_marker_ptr marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    const int orientation = orientation_of(Bytes{marker->data, marker->data_length});
    if (orientation != 1) return orientation;
  }
  return 1;
}

// Whether EOI stands behind the headers, which may hold one of a thumbnail. It does not occur within coded data.
bool has_end(const std::uint8_t* begin, std::size_t size) noexcept {
  constexpr std::uint8_t kEndOfImage[] = {0xFF, JPEG_EOI};
  for (const std::uint8_t* at = begin + size; at - begin >= 2; --at) {
    if (std::equal(at - 2, at, kEndOfImage)) return true;
  }
  return false;
}

bool has_end(const jpeg_source_mgr& source) noexcept { return has_end(source.next_input_byte, source.bytes_in_buffer); }

Probe probe_record(Bytes bytes) {
  Kept<RecordWorkspace> work;
  parse_record(bytes, work->record);
  const Bytes trailer = work->record.trailer;
  OpenJpeg open(full_header(work->record, work->header), Markers::exif, bytes.size);
  const jpeg_decompress_struct& info = open.info();
  return {info.image_width,
          info.image_height,
          info.num_components,
          subsampling_of(info),
          false,
          true,
          has_end(trailer.data, trailer.size),
          find_orientation(info)};
}

bool starts_as_jpeg(Bytes bytes) noexcept {
  constexpr std::uint8_t kStart[] = {0xFF, 0xD8, 0xFF};
  return bytes.size >= sizeof kStart && std::memcmp(bytes.data, kStart, sizeof kStart) == 0;
}

Size measure_record(Bytes bytes) {
  const Probe found = probe_record(bytes);
  return found.complete ? Size{found.height, found.width} : Size{0, 0};
}

}  // namespace

Probe probe(Bytes jpeg) {
  if (is_planes(jpeg)) return probe_record(jpeg);
  OpenJpeg open(jpeg, Markers::exif);
  const jpeg_decompress_struct& info = open.info();
  return {info.image_width,     info.image_height,          info.num_components,
          subsampling_of(info), info.progressive_mode != 0, is_crop_ready(jpeg, parse_frame(jpeg)),
          has_end(*info.src),   find_orientation(info)};
}

Size measure(Bytes jpeg) noexcept {
  try {
    if (is_planes(jpeg)) return measure_record(jpeg);
    if (!starts_as_jpeg(jpeg)) return {0, 0};  // an exception would take a microsecond
    OpenJpeg open(jpeg);
    const jpeg_decompress_struct& info = open.info();
    if (has_end(*info.src)) return {info.image_height, info.image_width};
  } catch (const JpegError&) {
  } catch (const std::bad_alloc&) {
  }
  return {0, 0};
}

}  // namespace dlio
