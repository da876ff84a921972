#include "resize/resize.hpp"

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

  void trim() noexcept {
    columns.trim();
    rows.trim();
    resized.trim();
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

}  // namespace

void resize(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
#ifdef DLIO_HAS_AVX2
  // Planes come from a back end that was in use a moment ago.
  if (pixels.plane_step > 0 || back_end() == BackEnd::avx512) return resize_by<WithAvx512>(pixels, part, flip, target);
  if (back_end() == BackEnd::avx2) return resize_by<WithAvx2>(pixels, part, flip, target);
#endif
  resize_by<OnAnyProcessor>(pixels, part, flip, target);
}

}  // namespace dlio
