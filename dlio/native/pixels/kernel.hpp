// The transform and the colours, to be included by one file for each back end, which names beforehand DLIO_KERNEL, the
// attribute of the functions that make them up, and vectors of 16 bit numbers as Vec with what is done to them: within
// lanes of 128 bits, each of which holds a row of a block.
#include <algorithm>
#include <cstring>

#include "pixels/kernels.hpp"

namespace dlio {
namespace {

constexpr std::size_t kNumbers = sizeof(Vec) / sizeof(std::int16_t);
constexpr std::size_t kBlocksAtOnce = kNumbers / 8;
constexpr std::size_t kPixelsAtOnce = 2 * kNumbers;

// The constants of the transform of Loeffler, Ligtenberg and Moschytz in 13 bits (libjpeg's jidctint.c).
constexpr int kConstantBits = 13, kPassBits = 2;
constexpr int k0_298 = 2446, k0_390 = 3196, k0_541 = 4433, k0_765 = 6270, k0_899 = 7373, k1_175 = 9633, k1_501 = 12299,
              k1_847 = 15137, k1_961 = 16069, k2_053 = 16819, k2_562 = 20995, k3_072 = 25172;

struct Low {
  DLIO_KERNEL static Vec pairs(Vec first, Vec second) noexcept { return low16(first, second); }
};
struct High {
  DLIO_KERNEL static Vec pairs(Vec first, Vec second) noexcept { return high16(first, second); }
};

// Transforms half of the columns of `in` to numbers of 32 bits.
template <class Half, int kShift>
DLIO_KERNEL inline void transform_half(const Vec (&in)[8], Vec (&out)[8]) noexcept {
  const Vec rounding = set32(1 << (kShift - 1));
  const Vec even = add32(shift32<16 - kConstantBits>(Half::pairs(zero(), add16(in[0], in[4]))), rounding);
  const Vec odd = add32(shift32<16 - kConstantBits>(Half::pairs(zero(), sub16(in[0], in[4]))), rounding);
  const Vec in26 = Half::pairs(in[2], in[6]);
  const Vec t3 = dot(in26, pair(k0_541 + k0_765, k0_541)), t2 = dot(in26, pair(k0_541, k0_541 - k1_847));
  const Vec sums = Half::pairs(add16(in[7], in[3]), add16(in[5], in[1]));
  const Vec z3 = dot(sums, pair(k1_175 - k1_961, k1_175)), z4 = dot(sums, pair(k1_175, k1_175 - k0_390));
  const Vec in71 = Half::pairs(in[7], in[1]), in53 = Half::pairs(in[5], in[3]);
  const Vec odds[4] = {
      add_dot(z3, in71, pair(k0_298 - k0_899, -k0_899)), add_dot(z4, in53, pair(k2_053 - k2_562, -k2_562)),
      add_dot(z3, in53, pair(-k2_562, k3_072 - k2_562)), add_dot(z4, in71, pair(-k0_899, k1_501 - k0_899))};
  const Vec evens[4] = {add32(even, t3), add32(odd, t2), sub32(odd, t2), sub32(even, t3)};
  for (int i = 0; i < 4; ++i) {
    out[i] = shift32<kShift>(add32(evens[i], odds[3 - i]));
    out[7 - i] = shift32<kShift>(sub32(evens[i], odds[3 - i]));
  }
}

template <int kShift>
DLIO_KERNEL inline void transform_columns(Vec (&rows)[8]) noexcept {
  Vec low[8], high[8];
  transform_half<Low, kShift>(rows, low);
  transform_half<High, kShift>(rows, high);
  for (int i = 0; i < 8; ++i) rows[i] = pack32(low[i], high[i]);
}

DLIO_KERNEL inline void transpose(Vec (&rows)[8]) noexcept {
  for (int round = 0; round < 3; ++round) {
    Vec next[8];
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = low16(rows[i], rows[i + 4]);
      next[2 * i + 1] = high16(rows[i], rows[i + 4]);
    }
    std::copy(next, next + 8, rows);
  }
}

// libjpeg-turbo does not saturate the columns of a block that has no other row than the first.
[[gnu::noinline]] DLIO_KERNEL void wrap_flat_blocks(const std::int16_t* const* blocks, Vec first,
                                                    Vec (&rows)[8]) noexcept {
  alignas(64) std::int16_t wrapped[8][kNumbers], values[kNumbers];
  std::memcpy(wrapped, rows, sizeof wrapped);
  std::memcpy(values, &first, sizeof values);
  for (std::size_t block = 0; block < kBlocksAtOnce; ++block) {
    const std::int16_t* const others = blocks[block] + 8;
    if (std::any_of(others, others + 56, [](std::int16_t value) { return value != 0; })) continue;
    for (auto& row : wrapped) {
      for (std::size_t i = 8 * block; i < 8 * block + 8; ++i) {
        row[i] = static_cast<std::int16_t>(static_cast<std::uint16_t>(values[i]) << kPassBits);
      }
    }
  }
  std::memcpy(rows, wrapped, sizeof wrapped);
}

DLIO_KERNEL inline void transform_some(const std::int16_t* const* blocks, const std::uint16_t* steps, std::uint8_t* out,
                                       std::size_t stride) noexcept {
  Vec rows[8];
  for (int i = 0; i < 8; ++i) rows[i] = mul16(load_rows(blocks, 8 * i), load_repeated(steps + 8 * i));
  const Vec first = rows[0];
  transform_columns<kConstantBits - kPassBits>(rows);
  if (__builtin_expect(exceeds_14_bits(first), 0)) wrap_flat_blocks(blocks, first, rows);
  transpose(rows);
  transform_columns<kConstantBits + kPassBits + 3>(rows);
  Vec bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = add8(pack16_signed(rows[2 * i], rows[2 * i + 1]), set8(-128));
  for (int round = 0; round < 3; ++round) {
    const Vec next[4] = {low8(bytes[0], bytes[2]), high8(bytes[0], bytes[2]), low8(bytes[1], bytes[3]),
                         high8(bytes[1], bytes[3])};
    std::copy(next, next + 4, bytes);
  }
  for (int i = 0; i < 4; ++i, out += 2 * stride) store_two_rows(bytes[i], out, stride);
}

DLIO_KERNEL void transform_blocks(const std::int16_t* const* blocks, std::size_t count, const std::uint16_t* steps,
                                  std::uint8_t* out, std::size_t stride) noexcept {
  std::size_t i = 0;
  for (; i + kBlocksAtOnce <= count; i += kBlocksAtOnce) transform_some(blocks + i, steps, out + 8 * i, stride);
  if (i == count) return;
  const std::int16_t* rest[kBlocksAtOnce];
  for (std::size_t j = 0; j < kBlocksAtOnce; ++j) rest[j] = blocks[std::min(i + j, count - 1)];
  transform_some(rest, steps, out + 8 * i, stride);
}

// A sample for each pixel: of those with even columns, and of the others.
struct Samples {
  Vec even, odd;
};

DLIO_KERNEL inline Samples load_samples(const std::uint8_t* at) noexcept {
  const Vec both = load(at);
  return {and_(both, set16(0xFF)), shift16<8>(both)};
}

// Writes what upsampling a row takes: its samples, from the one before the first on; with those of the other row, if
// there is one, that count a third.
template <Sampling kSampling>
DLIO_KERNEL inline void add_rows(const std::uint8_t* near, const std::uint8_t* far, std::size_t num_pixels,
                                 std::int16_t* sums) noexcept {
  const std::size_t count = num_pixels / 2 + 3;
  for (std::size_t i = 0; i < count; i += kNumbers) {
    Vec sum = load_widened(near + i - 1);
    if (kSampling == Sampling::half) sum = add16(add16(sum, add16(sum, sum)), load_widened(far + i - 1));
    store(sums + i, sum);
  }
}

template <Sampling kSampling>
DLIO_KERNEL inline Samples upsample(const std::int16_t* sums) noexcept {
  constexpr bool kBoth = kSampling == Sampling::half;
  const Vec own = load(sums + 1), own3 = add16(own, add16(own, own));
  return {shift16<kBoth ? 4 : 2>(add16(add16(own3, load(sums)), set16(kBoth ? 8 : 1))),
          shift16<kBoth ? 4 : 2>(add16(add16(own3, load(sums + 2)), set16(kBoth ? 7 : 2)))};
}

struct Colours {
  Vec red, green, blue;
};

// red = luma + 1.402 Cr, green = luma - 0.34414 Cb - 0.71414 Cr, blue = luma + 1.772 Cb, each product rounded as
// libjpeg does: of the factors what is beyond a whole number, in 16 bits.
DLIO_KERNEL inline Colours mix(Vec luma, Vec cb, Vec cr) noexcept {
  cb = sub16(cb, set16(128));
  cr = sub16(cr, set16(128));
  const Vec one = set16(1), cb2 = add16(cb, cb), cr2 = add16(cr, cr);
  const Vec red = signed_shift16<1>(add16(mul16_high(cr2, set16(26345)), one));
  const Vec blue = signed_shift16<1>(add16(mul16_high(cb2, set16(-14942)), one));
  const Vec factors = pair(-22554, 18734), half = set32(1 << 15);
  const Vec green =
      pack32(shift32<16>(add_dot(half, low16(cb, cr), factors)), shift32<16>(add_dot(half, high16(cb, cr), factors)));
  return {add16(add16(luma, cr), red), add16(sub16(luma, cr), green), add16(add16(luma, cb2), blue)};
}

template <Sampling kSampling>
DLIO_KERNEL void mix_row(const SampleRows& rows, std::size_t num_pixels, std::int16_t* sums, std::uint8_t* out,
                         std::size_t plane_step) noexcept {
  std::int16_t* const blue_sums = sums;
  std::int16_t* const red_sums = sums + num_pixels / 2 + kPixelsTooMany;
  if (kSampling == Sampling::half_width || kSampling == Sampling::half) {
    add_rows<kSampling>(rows.near[0], rows.far[0], num_pixels, blue_sums);
    add_rows<kSampling>(rows.near[1], rows.far[1], num_pixels, red_sums);
  }
  for (std::size_t x = 0; x < num_pixels; x += kPixelsAtOnce) {
    const Samples luma = load_samples(rows.luma + x);
    Samples cb, cr;
    if (kSampling == Sampling::full) {
      cb = load_samples(rows.near[0] + x);
      cr = load_samples(rows.near[1] + x);
    } else {
      cb = upsample<kSampling>(blue_sums + x / 2);
      cr = upsample<kSampling>(red_sums + x / 2);
    }
    const Colours even = mix(luma.even, cb.even, cr.even), odd = mix(luma.odd, cb.odd, cr.odd);
    store_pixels(pack_by_turns(even.red, odd.red), pack_by_turns(even.green, odd.green),
                 pack_by_turns(even.blue, odd.blue), out, x, plane_step);
  }
}

DLIO_KERNEL void mix_colours(Sampling sampling, const SampleRows& rows, std::size_t num_pixels, std::int16_t* sums,
                             std::uint8_t* out, std::size_t plane_step) noexcept {
  switch (sampling) {
    case Sampling::full:
      return mix_row<Sampling::full>(rows, num_pixels, sums, out, plane_step);
    case Sampling::half_width:
      return mix_row<Sampling::half_width>(rows, num_pixels, sums, out, plane_step);
    case Sampling::half:
      return mix_row<Sampling::half>(rows, num_pixels, sums, out, plane_step);
  }
}

}  // namespace
}  // namespace dlio
