#include "resize/resize.hpp"

#include "memory.hpp"
#include "resize/columns.hpp"
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

template <class Columns, auto kMixRows>
void resize_with(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
  Kept<Workspace<Columns>> work;
  const RowFormat format{target.width, target.layout == Layout::channels_height_width};
  work->columns.prepare(part.filter, part.columns, pixels.width, format, flip);
  work->rows.compute(part.filter, part.rows, pixels.height, target.height);

  std::uint8_t* const resized = work->resized.at_least(format.stride() * pixels.height);
  for (std::size_t y = 0; y < pixels.height; ++y) {
    work->columns.resize(pixels.next(), resized + y * format.stride());
  }
  for (std::uint32_t y = 0; y < target.height; ++y) {
    WeightedRows rows{resized + work->rows.first(y) * format.stride(), format.stride(), work->rows.of(y),
                      work->rows.count(y)};
    for (std::size_t run = 0; run < format.num_runs(); ++run, rows.first += format.run_stride()) {
      kMixRows(rows, format.run_bytes(), target.row(run, y));
    }
  }
}

}  // namespace

void resize(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
#ifdef DLIO_HAS_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return resize_with<Avx2Columns, mix_rows_avx2>(pixels, part, flip, target);
#endif
  resize_on_any_processor(pixels, part, flip, target);
}

void resize_on_any_processor(PixelRows& pixels, const Part& part, bool flip, const Target& target) {
  resize_with<PlainColumns, mix_rows>(pixels, part, flip, target);
}

}  // namespace dlio
