#include "resize/resize.hpp"

#include <cstring>

#include "dispatch.hpp"
#include "memory.hpp"
#include "processor.hpp"
#include "resize/columns.hpp"
#include "resize/columns_avx512.hpp"
#include "resize/rows.hpp"

namespace dlio {
namespace {

template <class Columns>
struct Workspace {
  Columns columns;
  Weights rows;
  Scratch resized;  // the rows of the input at the width of the output
  Scratch grey;     // a row of the output

  void trim() noexcept {
    columns.trim();
    rows.trim();
    resized.trim();
    grey.trim();
  }
};

// How each back end resizes: columns, then rows.
struct OnAnyProcessor {
  using Columns = PlainColumns;
  static constexpr auto kMixRows = mix_rows;

  static void resize(Columns& columns, PixelRows& pixels, std::uint8_t* out) { columns.resize(pixels.next(), out); }
};

#ifdef DLIO_HAS_AVX2
struct WithAvx2 {
  using Columns = Avx2Columns;
  static constexpr auto kMixRows = mix_rows_avx2;

  static void resize(Columns& columns, PixelRows& pixels, std::uint8_t* out) { columns.resize(pixels.next(), out); }
};

struct WithAvx512 {
  using Columns = Avx512Columns;
  static constexpr auto kMixRows = mix_rows_avx512;

  static void resize(Columns& columns, PixelRows& pixels, std::uint8_t* out) {
    columns.resize(pixels.next(), pixels.plane_step, out);
  }
};
#endif

template <class Way>
void resize_by(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
  Kept<Workspace<typename Way::Columns>> work;
  const RowFormat format{target.width, target.layout == Layout::channels_height_width};
  work->columns.prepare(part.filter, part.columns, pixels.width, format, flip);
  work->rows.compute(part.filter, part.rows, pixels.height, target.height);

  std::uint8_t* const resized = work->resized.at_least(format.stride() * pixels.height);
  for (std::size_t y = 0; y < pixels.height; ++y) Way::resize(work->columns, pixels, resized + y * format.stride());
  for (std::uint32_t y = 0; y < target.height; ++y) {
    WeightedRows rows{resized + work->rows.first(y) * format.stride(), format.stride(), work->rows.of(y),
                      work->rows.count(y)};
    for (std::size_t run = 0; run < format.num_runs(); ++run, rows.first += format.run_stride()) {
      Way::kMixRows(rows, format.run_bytes(), target.row(run, y));
    }
  }
}

DLIO_FOR_AVX2_TOO
void repeat_thrice(const std::uint8_t* grey, std::size_t num_pixels, std::uint8_t* out) {
  for (std::size_t x = 0; x < num_pixels; ++x) out[3 * x] = out[3 * x + 1] = out[3 * x + 2] = grey[x];
}

// Three rows as the channels of one are three runs of that row once it is resized: rows that follow one another again.
template <class Way>
void resize_grey_by(PixelRows& triples, std::uint32_t height, const Part& part, bool flip, const Target& target) {
  Kept<Workspace<typename Way::Columns>> work;
  const RowFormat format{target.width, true};
  work->columns.prepare(part.filter, part.columns, triples.width, format, flip);
  work->rows.compute(part.filter, part.rows, height, target.height);

  std::uint8_t* const resized = work->resized.at_least(format.stride() * triples.height);
  for (std::size_t y = 0; y < triples.height; ++y) {
    Way::resize(work->columns, triples, resized + y * format.stride());
  }
  const bool is_planar = target.layout == Layout::channels_height_width;
  std::uint8_t* const grey = is_planar ? nullptr : work->grey.at_least(target.width);
  for (std::uint32_t y = 0; y < target.height; ++y) {
    const WeightedRows rows{resized + work->rows.first(y) * format.run_stride(), format.run_stride(), work->rows.of(y),
                            work->rows.count(y)};
    std::uint8_t* const out = is_planar ? target.row(0, y) : grey;
    Way::kMixRows(rows, target.width, out);
    if (is_planar) {
      for (std::size_t plane = 1; plane < 3; ++plane) std::memcpy(target.row(plane, y), out, target.width);
    } else {
      repeat_thrice(grey, target.width, target.row(0, y));
    }
  }
}

}  // namespace

void resize_grey(PixelRows& triples, std::uint32_t height, const Part& part, bool flip, const Target& target) {
#ifdef DLIO_HAS_AVX2
  if (back_end() == BackEnd::avx512) return resize_grey_by<WithAvx512>(triples, height, part, flip, target);
  if (back_end() == BackEnd::avx2) return resize_grey_by<WithAvx2>(triples, height, part, flip, target);
#endif
  resize_grey_by<OnAnyProcessor>(triples, height, part, flip, target);
}

void resize(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
#ifdef DLIO_HAS_AVX2
  // Planes come from a back end that was in use a moment ago.
  if (pixels.plane_step > 0 || back_end() == BackEnd::avx512) return resize_by<WithAvx512>(pixels, part, flip, target);
  if (back_end() == BackEnd::avx2) return resize_by<WithAvx2>(pixels, part, flip, target);
#endif
  resize_by<OnAnyProcessor>(pixels, part, flip, target);
}

}  // namespace dlio
