// JpegWriter: libjpeg's compressor over memory that grows.
#include <algorithm>

#include "jpeg/codec.hpp"

#include <jerror.h>  // after jpeglib.h, whose version decides the numbers of the errors

namespace dlio {

struct JpegWriter::Target {
  struct Destination {
    jpeg_destination_mgr manager;  // first member: libjpeg hands back its address as that of the destination
    Target* target;
  };

  ~Target() { jpeg_destroy_compress(&info); }

  static void start(j_compress_ptr) {}
  static boolean grow(j_compress_ptr jpeg);
  static void finish(j_compress_ptr jpeg);
  static Target& of(j_compress_ptr jpeg) { return *reinterpret_cast<Destination*>(jpeg->dest)->target; }

  Destination destination{};
  jpeg_compress_struct info{};
  Arena arena;
  Scratch* bytes = nullptr;
  std::size_t size = 0;
};

namespace {
constexpr std::size_t kFirstBytes = std::size_t{1} << 18;
}

// libjpeg calls this when the whole buffer is full, whatever the two fields say.
boolean JpegWriter::Target::grow(j_compress_ptr jpeg) {
  Target& target = of(jpeg);
  const std::size_t used = target.bytes->capacity();
  if (!target.bytes->grow(2 * used, used)) ERREXIT1(jpeg, JERR_OUT_OF_MEMORY, 0);
  target.destination.manager.next_output_byte = target.bytes->data() + used;
  target.destination.manager.free_in_buffer = target.bytes->capacity() - used;
  return TRUE;
}

void JpegWriter::Target::finish(j_compress_ptr jpeg) {
  Target& target = of(jpeg);
  target.size = target.bytes->capacity() - target.destination.manager.free_in_buffer;
}

JpegWriter::Target& JpegWriter::of_this_thread() {
  thread_local Target target;
  return target;
}

JpegWriter::JpegWriter(ErrorTrap& trap, Scratch& out) : target_(of_this_thread()) {
  jpeg_compress_struct& jpeg = info();
  jpeg.err = trap.manager();
  if (jpeg.client_data == nullptr) {  // also where an earlier try ran out of memory halfway
    trap.run([&] { jpeg_create_compress(&jpeg); });
    target_.arena.attach(reinterpret_cast<j_common_ptr>(&jpeg));
  }
  // These lay in the arena, which was emptied after the image before.
  jpeg.comp_info = nullptr;
  std::fill(std::begin(jpeg.quant_tbl_ptrs), std::end(jpeg.quant_tbl_ptrs), nullptr);
  std::fill(std::begin(jpeg.dc_huff_tbl_ptrs), std::end(jpeg.dc_huff_tbl_ptrs), nullptr);
  std::fill(std::begin(jpeg.ac_huff_tbl_ptrs), std::end(jpeg.ac_huff_tbl_ptrs), nullptr);
  std::uint8_t* const first = out.at_least(kFirstBytes);
  target_.destination = {{first, out.capacity(), Target::start, Target::grow, Target::finish}, &target_};
  target_.bytes = &out;
  target_.size = 0;
  jpeg.dest = &target_.destination.manager;
}

JpegWriter::~JpegWriter() { jpeg_abort_compress(&info()); }

jpeg_compress_struct& JpegWriter::info() noexcept { return target_.info; }

Bytes JpegWriter::written() const noexcept { return {target_.bytes->data(), target_.size}; }

}  // namespace dlio
