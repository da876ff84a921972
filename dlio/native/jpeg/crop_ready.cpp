#include "jpeg/crop_ready.hpp"

#include <algorithm>
#include <cstring>

#include "jpeg/scan.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kTargetPixels = 64;

struct Tiling {
  std::uint32_t mcus_per_row;
  std::uint32_t mcu_rows;
  std::uint32_t interval;
};

// Returns the tiling of the JPEG that libjpeg would write: all components in one scan.
Tiling tiling_of(const jpeg_decompress_struct& jpeg) noexcept {
  const bool grey = jpeg.num_components == 1;
  const std::uint32_t mcu_width = grey ? 8 : 8 * static_cast<std::uint32_t>(jpeg.max_h_samp_factor);
  const std::uint32_t mcu_height = grey ? 8 : 8 * static_cast<std::uint32_t>(jpeg.max_v_samp_factor);
  const std::uint32_t per_row = (jpeg.image_width + mcu_width - 1) / mcu_width;
  return {per_row, (jpeg.image_height + mcu_height - 1) / mcu_height, preferred_interval(per_row, mcu_width)};
}

bool is_single_interval(const Tiling& tiling) noexcept {
  return tiling.interval == tiling.mcus_per_row && tiling.mcu_rows == 1;
}

bool is_ready(Bytes jpeg, std::uint32_t interval) {
  const std::optional<Frame> frame = parse_frame(jpeg);
  return frame && frame->restart_interval == interval && is_crop_ready(jpeg, frame);
}

// A progressive file that ends early is smoothed by the decoder; as a baseline file it would not be.
bool is_incomplete(const jpeg_decompress_struct& jpeg) noexcept {
  constexpr int kCoefficientsThatSmooth = 10;
  if (!jpeg.progressive_mode || jpeg.coef_bits == nullptr) return false;
  for (int component = 0; component < jpeg.num_components; ++component) {
    const int* bits = jpeg.coef_bits[component];
    if (std::any_of(bits, bits + kCoefficientsThatSmooth, [](int bit) { return bit != 0; })) return true;
  }
  return false;
}

bool starts_with(const jpeg_marker_struct& marker, const char* tag, std::size_t size) noexcept {
  return marker.data_length >= size && std::memcmp(marker.data, tag, size) == 0;
}

// These two tell decoders the colour space: libjpeg writes the one that is right, and a second, which may stand
// anywhere in the source, could contradict it.
bool tells_colours(const jpeg_marker_struct& marker) noexcept {
  return (marker.marker == JPEG_APP0 && starts_with(marker, "JFIF", 5)) ||
         (marker.marker == JPEG_APP0 + 14 && starts_with(marker, "Adobe", 5));
}

void rewrite(OpenJpeg& in, JpegWriter& writer, std::uint32_t interval, jvirt_barray_ptr* coefficients) {
  jpeg_compress_struct& out = writer.info();
  in.trap().run([&] {
    jpeg_copy_critical_parameters(&in.info(), &out);
    out.optimize_coding = TRUE;
    out.restart_interval = interval;
    out.restart_in_rows = 0;
    jpeg_write_coefficients(&out, coefficients);
    for (jpeg_saved_marker_ptr marker = in.info().marker_list; marker != nullptr; marker = marker->next) {
      if (tells_colours(*marker)) continue;
      jpeg_write_marker(&out, marker->marker, marker->data, marker->data_length);
    }
    jpeg_finish_compress(&out);
  });
}

std::optional<Bytes> rewrite_if_it_applies(Bytes jpeg, Scratch& out) {
  OpenJpeg in(jpeg, Markers::all);
  in.require_rgb_or_grey();
  const Tiling tiling = tiling_of(in.info());
  if (in.info().arith_code || is_single_interval(tiling) || is_ready(jpeg, tiling.interval)) return std::nullopt;
  jvirt_barray_ptr* coefficients = nullptr;
  in.trap().run([&] { coefficients = jpeg_read_coefficients(&in.info()); });
  if (is_incomplete(in.info())) return std::nullopt;
  JpegWriter writer(in.trap(), out);
  rewrite(in, writer, tiling.interval, coefficients);
  return writer.written();
}

std::optional<Bytes> rewrite_if_progressive(Bytes jpeg, Scratch& out) {
  OpenJpeg in(jpeg, Markers::all);
  in.require_rgb_or_grey();
  if (in.info().arith_code || !in.info().progressive_mode) return std::nullopt;
  jvirt_barray_ptr* coefficients = nullptr;
  in.trap().run([&] { coefficients = jpeg_read_coefficients(&in.info()); });
  if (is_incomplete(in.info())) return std::nullopt;
  JpegWriter writer(in.trap(), out);
  rewrite(in, writer, 0, coefficients);
  return writer.written();
}

template <class Rewrite>
std::optional<Bytes> or_nothing(Rewrite rewrite) {
  try {
    return rewrite();
  } catch (const JpegError& error) {
    if (error.status() == Status::out_of_memory) throw;
    return std::nullopt;
  }
}

}  // namespace

std::uint32_t preferred_interval(std::uint32_t mcus_per_row, std::uint32_t mcu_width) noexcept {
  const auto distance = [=](std::uint32_t interval) {
    const double ratio = static_cast<double>(interval) * mcu_width / kTargetPixels;
    return std::max(ratio, 1 / ratio);
  };
  std::uint32_t best = mcus_per_row;
  for (std::uint32_t interval = mcus_per_row; interval >= 1; --interval) {
    if (mcus_per_row % interval == 0 && distance(interval) < distance(best)) best = interval;
  }
  return best;
}

std::optional<Bytes> make_crop_ready(Bytes jpeg, Scratch& out) {
  return or_nothing([&] { return rewrite_if_it_applies(jpeg, out); });
}

std::optional<Bytes> make_baseline(Bytes jpeg, Scratch& out) {
  return or_nothing([&] { return rewrite_if_progressive(jpeg, out); });
}

}  // namespace dlio
