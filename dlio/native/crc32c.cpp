#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "dispatch.hpp"

namespace dlio {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected

std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) entry = (entry & 1) != 0 ? entry >> 1 ^ kPolynomial : entry >> 1;
    table[i] = entry;
  }
  return table;
}

std::uint32_t extend_by_table(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const std::array<std::uint32_t, 256> table = make_table();
  for (std::size_t i = 0; i < size; ++i) {
    state = table[(state ^ static_cast<std::uint8_t>(data[i])) & 0xff] ^ state >> 8;
  }
  return state;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
#if defined(__x86_64__)
DLIO_SSE42 inline std::uint32_t by_word(std::uint32_t state, std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
}

DLIO_SSE42 inline std::uint32_t by_byte(std::uint32_t state, std::uint8_t byte) noexcept {
  return _mm_crc32_u8(state, byte);
}
#else
std::uint32_t by_word(std::uint32_t state, std::uint64_t word) noexcept {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(state) : "r"(word));
  return state;
}

std::uint32_t by_byte(std::uint32_t state, std::uint8_t byte) noexcept {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
  return state;
}
#endif

// An instruction begins with each cycle, and its result is there after three: so three parts of the bytes are summed up
// side by side. Where a part is followed by others, its state goes on as if that many zeros came; `kBlock` of them are
// four look-ups.
constexpr std::size_t kBlock = 1024;
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

std::uint32_t shifted(const Shift& shift, std::uint32_t state) noexcept {
  return shift[0][state & 0xff] ^ shift[1][state >> 8 & 0xff] ^ shift[2][state >> 16 & 0xff] ^ shift[3][state >> 24];
}

Shift make_shift() noexcept {
  const std::array<char, kBlock> zeros{};
  Shift shift{};
  for (std::uint32_t byte = 0; byte < shift.size(); ++byte) {
    for (std::uint32_t i = 0; i < 256; ++i) shift[byte][i] = extend_by_table(i << 8 * byte, zeros.data(), kBlock);
  }
  return shift;
}

std::uint64_t word_at(const char* data) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

DLIO_SSE42 std::uint32_t extend_by_instruction(std::uint32_t state, const char* data, std::size_t size) noexcept {
  static const Shift shift = make_shift();
  for (; size >= 3 * kBlock; data += 3 * kBlock, size -= 3 * kBlock) {
    std::uint32_t second = 0, third = 0;
    for (const char* at = data; at < data + kBlock; at += sizeof(std::uint64_t)) {
      state = by_word(state, word_at(at));
      second = by_word(second, word_at(at + kBlock));
      third = by_word(third, word_at(at + 2 * kBlock));
    }
    state = shifted(shift, shifted(shift, state) ^ second) ^ third;
  }
  for (; size >= sizeof(std::uint64_t); data += sizeof(std::uint64_t), size -= sizeof(std::uint64_t)) {
    state = by_word(state, word_at(data));
  }
  for (; size > 0; ++data, --size) state = by_byte(state, static_cast<std::uint8_t>(*data));
  return state;
}
#endif

#if defined(__x86_64__)
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
  if (size < 2 * kRound) return extend_by_instruction(state, data, size);
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
  return extend_by_instruction(extend_by_instruction(0, left, kBytes), data, size);
}
#endif

using Extend = std::uint32_t (*)(std::uint32_t, const char*, std::size_t) noexcept;

Extend fastest() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) {
    const bool folds = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
    return folds ? extend_by_folding : extend_by_instruction;
  }
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kHasCrc32 = 1UL << 7;  // HWCAP_CRC32 of the kernel
  if ((getauxval(AT_HWCAP) & kHasCrc32) != 0) return extend_by_instruction;
#endif
  return extend_by_table;
}

}  // namespace

std::uint32_t extend_crc(std::uint32_t crc, const char* data, std::size_t size) noexcept {
  static const Extend extend = fastest();
  return ~extend(~crc, data, size);
}

}  // namespace dlio
