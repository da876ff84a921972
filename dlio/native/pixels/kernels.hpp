// From blocks of coefficients to pixels, as libjpeg-turbo does it on x86-64: its accurate integer transform, "fancy"
// upsampling and colours, to the same bytes, also where hostile coefficients overflow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dlio {

// Chroma at its full resolution, at half of its width, or at half of both.
enum class Sampling { full, half_width, half };

// What a row of pixels is made of, from a pixel of an even column on. Chroma can be read one sample before.
struct SampleRows {
  const std::uint8_t* luma;
  const std::uint8_t* near[2];  // blue, red: the nearest row of chroma
  const std::uint8_t* far[2];   // and the one at its other side, for Sampling::half
};

// Transforms `count` blocks, in natural order, that lie side by side in a plane; `steps` are the quantisers. Writes up
// to kBlocksTooMany blocks more than there are.
using TransformBlocks = void (*)(const std::int16_t* const* blocks, std::size_t count, const std::uint16_t* steps,
                                 std::uint8_t* out, std::size_t stride);
constexpr std::size_t kBlocksTooMany = 3;

// Makes pixels: planes of red, green and blue, `plane_step` bytes from one to the next; or, where that is 0, four bytes
// for each. `sums` has room for two rows of samples with kPixelsTooMany. Reads and writes up to kPixelsTooMany more
// than there are.
using MixColours = void (*)(Sampling sampling, const SampleRows& rows, std::size_t num_pixels, std::int16_t* sums,
                            std::uint8_t* out, std::size_t plane_step);
constexpr std::size_t kPixelsTooMany = 128;

struct PixelKernels {
  TransformBlocks transform;
  MixColours mix;
  bool makes_planes;
};

// Returns those of the back end in use, or nullptr where it has none.
const PixelKernels* pixel_kernels() noexcept;

}  // namespace dlio
