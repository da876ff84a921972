#include "jpeg/probe.hpp"

#include <algorithm>
#include <new>

#include "jpeg/exif.hpp"
#include "jpeg/scan.hpp"

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
bool has_end(const jpeg_source_mgr& source) noexcept {
  constexpr std::uint8_t kEndOfImage[] = {0xFF, JPEG_EOI};
  const std::uint8_t* const begin = source.next_input_byte;
  for (const std::uint8_t* at = begin + source.bytes_in_buffer; at - begin >= 2; --at) {
    if (std::equal(at - 2, at, kEndOfImage)) return true;
  }
  return false;
}

}  // namespace

Probe probe(Bytes jpeg) {
  OpenJpeg open(jpeg, Markers::exif);
  const jpeg_decompress_struct& info = open.info();
  return {info.image_width,     info.image_height,          info.num_components,
          subsampling_of(info), info.progressive_mode != 0, is_crop_ready(jpeg, parse_frame(jpeg)),
          has_end(*info.src),   find_orientation(info)};
}

Size measure(Bytes jpeg) noexcept {
  if (jpeg.size == 0) return {0, 0};  // stands for what is no JPEG, and an exception would take a microsecond
  try {
    OpenJpeg open(jpeg);
    const jpeg_decompress_struct& info = open.info();
    if (has_end(*info.src)) return {info.image_height, info.image_width};
  } catch (const JpegError&) {
  } catch (const std::bad_alloc&) {
  }
  return {0, 0};
}

}  // namespace dlio
