// CRC-32C on x86-64: by SSE4.2's instruction, or by multiplying polynomials in vectors.
#if defined(__x86_64__)

#include <immintrin.h>

#include "crc32c/by_words.hpp"

namespace dlio {
namespace {

struct Sse42 {
  DLIO_SSE42 static std::uint32_t word(std::uint32_t state, std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
  }
  DLIO_SSE42 static std::uint32_t byte(std::uint32_t state, std::uint8_t byte) noexcept {
    return _mm_crc32_u8(state, byte);
  }
};

// Returns x^n modulo the polynomial, reflected, where a product of reflected numbers has it: one bit higher.
long long power(int n) noexcept {
  std::uint32_t value = 0x80000000;
  for (; n > 0; --n) value = (value & 1) != 0 ? value >> 1 ^ kPolynomial : value >> 1;
  return static_cast<long long>(value) << 1;
}

// What the two halves of 16 bytes are multiplied by to stand `bits` further on (Gopal and others, "Fast CRC Computation
// for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
struct Factors {
  explicit Factors(int bits) noexcept : low(power(bits + 32)), high(power(bits - 32)) {}
  long long low, high;
};

DLIO_FOLDING inline __m256i folded(__m256i value, __m256i factors, __m256i next) noexcept {
  const __m256i low = _mm256_clmulepi64_epi128(value, factors, 0x00);
  const __m256i high = _mm256_clmulepi64_epi128(value, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

DLIO_FOLDING inline __m256i vector_at(const char* data) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

// Folds the bytes into eight vectors, these into one, and sums that up: it has the remainder of all bytes before.
DLIO_FOLDING std::uint32_t extend_by_folding(std::uint32_t state, const char* data, std::size_t size) noexcept {
  constexpr std::size_t kVectors = 8, kBytes = sizeof(__m256i), kRound = kVectors * kBytes;
  static const Factors far(8 * kRound), near(8 * kBytes);
  if (size < 2 * kRound) return extend_by_words<Sse42>(state, data, size);
  __m256i vectors[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) vectors[i] = vector_at(data + i * kBytes);
  vectors[0] = _mm256_xor_si256(vectors[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(state)));
  const __m256i round = _mm256_set_epi64x(far.high, far.low, far.high, far.low);
  for (data += kRound, size -= kRound; size >= kRound; data += kRound, size -= kRound) {
    for (std::size_t i = 0; i < kVectors; ++i) vectors[i] = folded(vectors[i], round, vector_at(data + i * kBytes));
  }
  const __m256i one = _mm256_set_epi64x(near.high, near.low, near.high, near.low);
  for (std::size_t i = 1; i < kVectors; ++i) vectors[i] = folded(vectors[i - 1], one, vectors[i]);
  char left[kBytes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(left), vectors[kVectors - 1]);
  return extend_by_words<Sse42>(extend_by_words<Sse42>(0, left, kBytes), data, size);
}

}  // namespace

std::array<Extend, 2> ways_of_processor() noexcept {
  if (__builtin_cpu_supports("sse4.2") == 0) return {};
  const bool folds = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  if (folds) return {extend_by_folding, extend_by_words<Sse42>};
  return {extend_by_words<Sse42>, nullptr};
}

}  // namespace dlio
#endif
