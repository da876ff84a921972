#include "jpeg/exif.hpp"

#include <cstring>

namespace dlio {
namespace {

constexpr int kAsStored = 1;
constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint32_t kShort = 3, kLong = 4;
constexpr std::size_t kEntryBytes = 12;

// A TIFF file: numbers in either byte order, 0 where they would lie outside of it.
class Tiff {
 public:
  explicit Tiff(Bytes bytes) noexcept : bytes_(bytes), little_(bytes.size > 0 && bytes.data[0] == 'I') {}

  std::uint32_t u16(std::size_t at) const noexcept {
    if (bytes_.size < 2 || at > bytes_.size - 2) return 0;
    const std::uint32_t first = bytes_.data[at], second = bytes_.data[at + 1];
    return little_ ? second << 8 | first : first << 8 | second;
  }

  std::uint32_t u32(std::size_t at) const noexcept {
    return little_ ? u16(at + 2) << 16 | u16(at) : u16(at) << 16 | u16(at + 2);
  }

 private:
  Bytes bytes_;
  bool little_;
};

}  // namespace

int orientation_of(Bytes payload) noexcept {
  constexpr std::size_t kTagBytes = 6;
  if (payload.size < kTagBytes || std::memcmp(payload.data, "Exif\0\0", kTagBytes) != 0) return kAsStored;
  const Tiff tiff({payload.data + kTagBytes, payload.size - kTagBytes});
  if (tiff.u16(2) != 42) return kAsStored;
  const std::size_t directory = tiff.u32(4);
  const std::uint32_t num_entries = tiff.u16(directory);
  for (std::uint32_t i = 0; i < num_entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.u16(entry) != kOrientationTag) continue;
    const std::uint32_t type = tiff.u16(entry + 2);
    if ((type != kShort && type != kLong) || tiff.u32(entry + 4) != 1) return kAsStored;
    const std::uint32_t value = type == kShort ? tiff.u16(entry + 8) : tiff.u32(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : kAsStored;
  }
  return kAsStored;
}

}  // namespace dlio
