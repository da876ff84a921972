// OpenJpeg: a bounded source of bytes, limits against decompression bombs, one libjpeg object for each thread.
#include <algorithm>
#include <string>

#include "jpeg/codec.hpp"
#include "resize/request.hpp"

#include <jerror.h>  // after jpeglib.h, whose version decides the numbers of the errors

namespace dlio {
namespace {

void start_source(j_decompress_ptr) {}

void end_source(j_decompress_ptr) {}

// Called when the bytes are used up. The warning ends the decode: see ErrorTrap.
boolean refill(j_decompress_ptr jpeg) {
  WARNMS(jpeg, JWRN_JPEG_EOF);
  ERREXIT(jpeg, JERR_INPUT_EOF);
  return FALSE;
}

void skip(j_decompress_ptr jpeg, long num_bytes) {
  if (num_bytes <= 0) return;
  if (static_cast<std::size_t>(num_bytes) > jpeg->src->bytes_in_buffer) refill(jpeg);
  jpeg->src->next_input_byte += num_bytes;
  jpeg->src->bytes_in_buffer -= static_cast<std::size_t>(num_bytes);
}

// A progressive file may hold any number of scans, each of a few bytes and each a pass over the whole image.
void check_scans(j_common_ptr codec) {
  if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number > kMaxScans) {
    ErrorTrap::fail(codec, Status::too_large, "the JPEG has more than 100 scans");
  }
}

// Bytes of a file per pixel have a floor: a Huffman code has at least 1 bit, a block of a sequential JPEG at least 2,
// a progressive one at least 1 (for its DC), and a block covers at most 8 x 8 of the pixels, times 4 where all
// components are subsampled in one direction. So 1024 pixels need a byte.
constexpr std::uint64_t kMaxPixelsPerByte = 1024;

std::string size_text(std::uint32_t width, std::uint32_t height) {
  return std::to_string(width) + " x " + std::to_string(height) + " pixels";
}

}  // namespace

void check_pixels(std::uint32_t width, std::uint32_t height) {
  if (std::uint64_t{width} * height <= kMaxPixels) return;
  throw JpegError(Status::too_large,
                  size_text(width, height) + ", at most " + std::to_string(kMaxPixels) + " are decoded");
}

struct Codec {
  Codec();
  ~Codec() { jpeg_destroy_decompress(&info); }

  static Codec& of_this_thread() {
    thread_local Codec codec;
    return codec;
  }

  void keep(Markers markers);

  ErrorTrap trap;
  Arena arena;
  jpeg_decompress_struct info{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
};

Codec::Codec() {
  info.err = trap.manager();
  trap.run([&] { jpeg_create_decompress(&info); });
  arena.attach(reinterpret_cast<j_common_ptr>(&info));
  source.init_source = start_source;
  source.fill_input_buffer = refill;
  source.skip_input_data = skip;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = end_source;
  info.src = &source;
  progress.progress_monitor = check_scans;
  info.progress = &progress;
}

void Codec::keep(Markers markers) {
  for (int marker = JPEG_APP0; marker <= JPEG_APP0 + 15; ++marker) {
    const bool wanted = markers == Markers::all || (markers == Markers::exif && marker == JPEG_APP0 + 1);
    jpeg_save_markers(&info, marker, wanted ? 0xFFFF : 0);
  }
  jpeg_save_markers(&info, JPEG_COM, markers == Markers::all ? 0xFFFF : 0);
}

OpenJpeg::OpenJpeg(Bytes bytes, Markers markers, std::size_t coded_bytes) : codec_(Codec::of_this_thread()) {
  if (bytes.size == 0) throw JpegError(Status::not_jpeg, "Empty input file");
  // The tables of the image before lay in the arena; a JPEG without tables of its own must not see them either.
  std::fill(std::begin(info().quant_tbl_ptrs), std::end(info().quant_tbl_ptrs), nullptr);
  std::fill(std::begin(info().dc_huff_tbl_ptrs), std::end(info().dc_huff_tbl_ptrs), nullptr);
  std::fill(std::begin(info().ac_huff_tbl_ptrs), std::end(info().ac_huff_tbl_ptrs), nullptr);
  codec_.source.next_input_byte = bytes.data;
  codec_.source.bytes_in_buffer = bytes.size;
  try {
    trap().run([&] {
      codec_.keep(markers);
      jpeg_read_header(&info(), TRUE);
    });
    check_size(coded_bytes);
  } catch (...) {
    jpeg_abort_decompress(&info());
    throw;
  }
}

OpenJpeg::~OpenJpeg() { jpeg_abort_decompress(&info()); }

jpeg_decompress_struct& OpenJpeg::info() noexcept { return codec_.info; }

ErrorTrap& OpenJpeg::trap() noexcept { return codec_.trap; }

void OpenJpeg::check_size(std::size_t num_bytes) {
  const std::uint32_t width = info().image_width, height = info().image_height;
  check_pixels(width, height);
  if (!info().arith_code && std::uint64_t{width} * height / kMaxPixelsPerByte > num_bytes) {
    throw JpegError(Status::damaged,
                    size_text(width, height) + " cannot be coded in " + std::to_string(num_bytes) + " bytes");
  }
}

void OpenJpeg::require_rgb_or_grey() {
  const J_COLOR_SPACE color = info().jpeg_color_space;
  const bool known = color == JCS_GRAYSCALE || color == JCS_YCbCr || color == JCS_RGB;
  if (!known) {
    throw JpegError(Status::unsupported, std::to_string(info().num_components) + " components");
  }
  if (info().data_precision != 8) {
    throw JpegError(Status::unsupported, std::to_string(info().data_precision) + " bits per sample");
  }
}

}  // namespace dlio
