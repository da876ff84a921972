#include "planes/make.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "jpeg/crop_ready.hpp"
#include "planes/coefficients.hpp"
#include "planes/tile_encoder.hpp"

namespace dlio {
namespace {

constexpr std::uint8_t kMarker = 0xFF, kFirstRestart = 0xD0, kLastRestart = 0xD7;

struct Workspace {
  Scratch baseline;  // of a progressive JPEG
  Scratch coefficients;
  Scratch restored;
  std::vector<std::uint8_t> tiles, header;
  std::vector<std::uint16_t> sizes;

  void trim() noexcept {
    baseline.trim();
    coefficients.trim();
    restored.trim();
    trim_kept(tiles);
    trim_kept(header);
    trim_kept(sizes);
  }
};

struct Coefficients {
  const std::int16_t* blocks;
  std::uint32_t mcus_per_row;
  std::uint32_t mcu_rows;
  std::size_t num_blocks;
};

// Returns what follows the entropy-coded data: the first marker that is no restart, and all behind it.
Bytes trailer_of(Bytes jpeg, const Frame& frame) noexcept {
  const std::uint8_t* const end = jpeg.data + jpeg.size;
  const std::uint8_t* at = jpeg.data + frame.scan;
  while (end - at >= 2) {
    at = static_cast<const std::uint8_t*>(std::memchr(at, kMarker, static_cast<std::size_t>(end - at) - 1));
    if (at == nullptr) break;
    if (at[1] != 0 && (at[1] < kFirstRestart || at[1] > kLastRestart)) return {at, static_cast<std::size_t>(end - at)};
    at += 2;
  }
  return {end, 0};
}

bool all_encodable(const Coefficients& coefficients) noexcept {
  for (std::size_t i = 0; i < coefficients.num_blocks; ++i) {
    if (!is_encodable(coefficients.blocks + i * kBlockSize)) return false;
  }
  return true;
}

struct Coding {
  std::uint8_t preset;
  std::uint8_t tile_mcus;
};

// Returns how many bits a preset takes for some of the blocks.
std::size_t cost_of(const Coefficients& all, const Mcu& mcu, const Preset& preset, std::size_t step) noexcept {
  const TileEncoder& encoder = tile_encoder();
  const auto mcu_blocks = static_cast<std::size_t>(mcu.num_blocks);
  std::size_t num_bits = 0;
  for (std::size_t i = 0; i < all.num_blocks; i += step * mcu_blocks) {
    for (std::size_t j = 0; j < mcu_blocks; ++j) {
      num_bits += static_cast<std::size_t>(
          encoder.num_bits_of(all.blocks + (i + j) * kBlockSize, mcu.component[j] > 0, preset));
    }
  }
  return num_bits;
}

// Chooses by a sample of the MCUs: the preset that takes the fewest bits, and the narrowest tiles whose heads and sizes
// count little.
Coding choose_coding(const Coefficients& all, const Mcu& mcu) noexcept {
  constexpr std::size_t kSample = 100, kTileBits = 2400, kMinPixels = 64;
  const std::size_t num_mcus = all.num_blocks / static_cast<std::size_t>(mcu.num_blocks);
  const std::size_t step = num_mcus / kSample + 1;
  Coding coding{0, 0};
  std::size_t smallest = SIZE_MAX;
  for (int number = 0; number < num_presets(); ++number) {
    const std::size_t cost = cost_of(all, mcu, preset(number), step);
    if (cost >= smallest) continue;
    smallest = cost;
    coding.preset = static_cast<std::uint8_t>(number);
  }
  const std::size_t mcu_bits = smallest / std::max<std::size_t>(1, (num_mcus + step - 1) / step);
  std::uint32_t tile_mcus = static_cast<std::uint32_t>(kMinPixels) / (8 * mcu.horizontal);
  while (tile_mcus < kMaxTileMcus && tile_mcus * mcu_bits < kTileBits) tile_mcus *= 2;
  coding.tile_mcus = static_cast<std::uint8_t>(tile_mcus);
  return coding;
}

// Codes all tiles. Returns false where one is larger than its size can say.
bool encode_tiles(const Coefficients& all, const Mcu& mcu, const Preset& preset, std::uint32_t tile_mcus,
                  Workspace& work) {
  const TileEncoder& encoder = tile_encoder();
  const std::int16_t* blocks = all.blocks;
  work.tiles.clear();
  work.sizes.clear();
  for (std::uint32_t row = 0; row < all.mcu_rows; ++row) {
    for (std::uint32_t column = 0; column < all.mcus_per_row; column += tile_mcus) {
      const TileShape shape{&mcu, static_cast<int>(std::min(tile_mcus, all.mcus_per_row - column))};
      const std::size_t before = work.tiles.size();
      encoder.encode(blocks, shape, preset, work.tiles);
      const std::size_t size = work.tiles.size() - before;
      if (size > UINT16_MAX) return false;
      work.sizes.push_back(static_cast<std::uint16_t>(size));
      blocks += shape.num_blocks() * kBlockSize;
    }
  }
  return true;
}

// Returns the header, without the standard tables where it has them at its end.
Bytes cut_header(Bytes jpeg, const Frame& frame, const Mcu& mcu, std::uint8_t& flags, std::vector<std::uint8_t>& out) {
  const std::size_t cut = standard_tables_size(jpeg, frame, mcu);
  if (cut == 0) return {jpeg.data, frame.scan};
  flags |= kStandardTables;
  const std::size_t sos = 8 + 2 * static_cast<std::size_t>(mcu.num_components);
  out.assign(jpeg.data, jpeg.data + frame.scan - sos - cut);
  out.insert(out.end(), jpeg.data + frame.scan - sos, jpeg.data + frame.scan);
  return {out.data(), out.size()};
}

bool comes_back(Bytes jpeg, const std::vector<std::uint8_t>& record, Scratch& memory) {
  const Bytes restored = from_planes({record.data(), record.size()}, memory);
  return restored.size == jpeg.size && std::memcmp(restored.data, jpeg.data, jpeg.size) == 0;
}

bool encode_baseline(Bytes jpeg, std::uint8_t flags, Workspace& work, std::vector<std::uint8_t>& out) {
  const std::optional<Frame> frame = parse_frame(jpeg);
  Mcu mcu{};
  if (!frame || !parse_mcu(jpeg, *frame, mcu) || jpeg.size > INT32_MAX) return false;
  Coefficients all{nullptr, frame->mcus_per_row(), (frame->height + frame->mcu_height - 1) / frame->mcu_height, 0};
  all.num_blocks = std::size_t{all.mcus_per_row} * all.mcu_rows * static_cast<std::size_t>(mcu.num_blocks);
  {
    OpenJpeg open(jpeg);
    const J_COLOR_SPACE color = open.info().jpeg_color_space;
    if (color != JCS_YCbCr && color != JCS_GRAYSCALE) return false;
    all.blocks = read_coefficients(open, *frame, mcu, work.coefficients);
  }
  if (!all_encodable(all)) return false;
  const Coding coding = choose_coding(all, mcu);
  if (!encode_tiles(all, mcu, preset(coding.preset), coding.tile_mcus, work)) return false;
  const Bytes header = cut_header(jpeg, *frame, mcu, flags, work.header);
  const Bytes tiles{work.tiles.data(), work.tiles.size()};
  write_record({flags, coding.preset, coding.tile_mcus, header, trailer_of(jpeg, *frame), work.sizes, tiles}, out);
  return comes_back(jpeg, out, work.restored);
}

}  // namespace

bool to_planes(Bytes jpeg, std::vector<std::uint8_t>& out) {
  Kept<Workspace> work;
  try {
    if (const std::optional<Bytes> baseline = make_baseline(jpeg, work->baseline)) {
      return encode_baseline(*baseline, kOfProgressive, *work, out);
    }
    return encode_baseline(jpeg, 0, *work, out);
  } catch (const JpegError& error) {
    if (error.status() == Status::out_of_memory) throw;
    return false;
  }
}

}  // namespace dlio
