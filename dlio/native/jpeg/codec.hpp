// libjpeg's two objects with an owner: an opened JPEG to read, and a JPEG to write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image.hpp"
#include "jpeg/arena.hpp"
#include "jpeg/error_trap.hpp"
#include "memory.hpp"

namespace dlio {

constexpr int kMaxScans = 100;  // a file that claims more is refused before memory is taken

// Throws JpegError where an image has more than kMaxPixels.
void check_pixels(std::uint32_t width, std::uint32_t height);

enum class Markers { none, exif, all };  // which APPn and COM segments libjpeg keeps for us

struct Codec;

// A JPEG whose headers are read. Every thread owns one libjpeg object, which the next OpenJpeg of that thread takes
// over with its memory: at most one is alive in a thread at a time. `bytes` must outlive it.
class OpenJpeg {
 public:
  // Throws JpegError where the headers are bad or claim more than the limits allow.
  explicit OpenJpeg(Bytes bytes, Markers markers = Markers::none) : OpenJpeg(bytes, markers, bytes.size) {}
  // The same of a header whose coefficients are elsewhere, in this many bytes.
  OpenJpeg(Bytes header, Markers markers, std::size_t coded_bytes);
  ~OpenJpeg();
  OpenJpeg(const OpenJpeg&) = delete;
  OpenJpeg& operator=(const OpenJpeg&) = delete;

  jpeg_decompress_struct& info() noexcept;
  ErrorTrap& trap() noexcept;

  // Throws JpegError where the core does not turn such an image to RGB: CMYK, YCCK, unknown colours, not 8 bit.
  void require_rgb_or_grey();

 private:
  void check_size(std::size_t num_bytes);

  Codec& codec_;
};

// A JPEG being written to memory that the caller owns. One per thread at a time.
class JpegWriter {
 public:
  JpegWriter(ErrorTrap& trap, Scratch& out);
  ~JpegWriter();
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;

  jpeg_compress_struct& info() noexcept;
  // Returns what was written; valid as long as `out` does not change.
  Bytes written() const noexcept;

 private:
  struct Target;
  static Target& of_this_thread();

  Target& target_;
};

}  // namespace dlio
