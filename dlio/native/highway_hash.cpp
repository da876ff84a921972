#include "highway_hash.hpp"

#include <cstring>

#include "dispatch.hpp"
#include "processor.hpp"

#ifdef DLIO_HAS_AVX2
#include <immintrin.h>
#endif

namespace dlio {
namespace {

constexpr std::size_t kPacket = 32;
using Lanes = std::array<std::uint64_t, 4>;

constexpr Lanes kFirst = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344, 0x243f6a8885a308d3};
constexpr Lanes kSecond = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c, 0x452821e638d01377};

struct State {
  Lanes v0, v1, mul0, mul1;
};

constexpr std::uint64_t swapped_halves(std::uint64_t lane) noexcept { return lane >> 32 | lane << 32; }
constexpr std::uint64_t byte_at(std::uint64_t lane, int from, int to) noexcept {
  return (lane >> 8 * from & 0xff) << 8 * to;
}

// Adds to `to` what the bytes of `from` are in another order, by pairs of lanes: those of the high digits of products,
// which depend on most bits, go where the next products depend on them.
inline void add_mixed(Lanes& to, const Lanes& from) noexcept {
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const std::uint64_t low = from[pair], high = from[pair + 1];
    to[pair] += byte_at(low, 3, 0) | byte_at(high, 4, 1) | byte_at(low, 2, 2) | byte_at(low, 5, 3) |
                byte_at(high, 6, 4) | byte_at(low, 1, 5) | byte_at(high, 7, 6) | byte_at(low, 0, 7);
    to[pair + 1] += byte_at(high, 3, 0) | byte_at(low, 4, 1) | byte_at(high, 2, 2) | byte_at(high, 5, 3) |
                    byte_at(high, 1, 4) | byte_at(low, 6, 5) | byte_at(high, 0, 6) | byte_at(low, 7, 7);
  }
}

inline void update(State& state, const Lanes& packet) noexcept {
  auto& [v0, v1, mul0, mul1] = state;
  for (std::size_t i = 0; i < 4; ++i) {
    v1[i] += mul0[i] + packet[i];
    mul0[i] ^= (v1[i] & 0xffffffff) * (v0[i] >> 32);
    v0[i] += mul1[i];
    mul1[i] ^= (v0[i] & 0xffffffff) * (v1[i] >> 32);
  }
  add_mixed(v0, v1);
  add_mixed(v1, v0);
}

inline Lanes packet_at(const unsigned char* data) noexcept {
  Lanes packet;
  std::memcpy(packet.data(), data, kPacket);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  for (std::uint64_t& lane : packet) lane = __builtin_bswap64(lane);
#endif
  return packet;
}

inline std::uint64_t rotated_halves(std::uint64_t lane, unsigned count) noexcept {  // count: from 1 to 31
  const auto low = static_cast<std::uint32_t>(lane), high = static_cast<std::uint32_t>(lane >> 32);
  return (low << count | low >> (32 - count)) | std::uint64_t{high << count | high >> (32 - count)} << 32;
}

// Takes the last bytes, from 1 to 31.
inline void update_by_rest(State& state, const unsigned char* data, std::size_t size) noexcept {
  for (std::uint64_t& lane : state.v0) lane += (std::uint64_t{size} << 32) + size;
  for (std::uint64_t& lane : state.v1) lane = rotated_halves(lane, static_cast<unsigned>(size));
  std::array<unsigned char, kPacket> packet{};
  const std::size_t words = size & ~std::size_t{3}, odd = size & 3;
  std::memcpy(packet.data(), data, words);
  if ((size & 16) != 0) {
    std::memcpy(packet.data() + 28, data + size - 4, 4);
  } else if (odd != 0) {
    packet[16] = data[words];
    packet[17] = data[words + (odd >> 1)];
    packet[18] = data[size - 1];
  }
  update(state, packet_at(packet.data()));
}

#ifdef DLIO_HAS_AVX2
// Four lanes in a register. Orders the bytes of a pair of lanes as `add_mixed`.
DLIO_AVX2 inline __m256i mixed(__m256i lanes) noexcept {
  const __m256i order =
      _mm256_set_epi64x(0x070806090d0a040b, 0x000f010e05020c03, 0x070806090d0a040b, 0x000f010e05020c03);
  return _mm256_shuffle_epi8(lanes, order);
}

DLIO_AVX2 void absorb_by_avx2(State& state, const unsigned char* data, std::size_t packets) noexcept {
  const auto at = [](Lanes& lanes) noexcept { return reinterpret_cast<__m256i*>(lanes.data()); };
  __m256i v0 = _mm256_loadu_si256(at(state.v0)), v1 = _mm256_loadu_si256(at(state.v1));
  __m256i mul0 = _mm256_loadu_si256(at(state.mul0)), mul1 = _mm256_loadu_si256(at(state.mul1));
  for (; packets > 0; --packets, data += kPacket) {
    const __m256i packet = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
    v1 = _mm256_add_epi64(v1, _mm256_add_epi64(mul0, packet));
    mul0 = _mm256_xor_si256(mul0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32)));
    v0 = _mm256_add_epi64(v0, mul1);
    mul1 = _mm256_xor_si256(mul1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32)));
    v0 = _mm256_add_epi64(v0, mixed(v1));
    v1 = _mm256_add_epi64(v1, mixed(v0));
  }
  _mm256_storeu_si256(at(state.v0), v0);
  _mm256_storeu_si256(at(state.v1), v1);
  _mm256_storeu_si256(at(state.mul0), mul0);
  _mm256_storeu_si256(at(state.mul1), mul1);
}
#endif

void absorb(State& state, const unsigned char* data, std::size_t packets) noexcept {
#ifdef DLIO_HAS_AVX2
  if (back_end() != BackEnd::any_processor) return absorb_by_avx2(state, data, packets);
#endif
  for (; packets > 0; --packets, data += kPacket) update(state, packet_at(data));
}

}  // namespace

std::uint64_t highway_hash(const HighwayKey& key, const unsigned char* data, std::size_t size) noexcept {
  State state{kFirst, kSecond, kFirst, kSecond};
  for (std::size_t i = 0; i < 4; ++i) {
    state.v0[i] ^= key[i];
    state.v1[i] ^= swapped_halves(key[i]);
  }
  const std::size_t packets = size / kPacket, rest = size % kPacket;
  absorb(state, data, packets);
  if (rest != 0) update_by_rest(state, data + packets * kPacket, rest);
  for (int round = 0; round < 4; ++round) {
    const Lanes& v0 = state.v0;
    update(state, {swapped_halves(v0[2]), swapped_halves(v0[3]), swapped_halves(v0[0]), swapped_halves(v0[1])});
  }
  return state.v0[0] + state.v1[0] + state.mul0[0] + state.mul1[0];
}

}  // namespace dlio
