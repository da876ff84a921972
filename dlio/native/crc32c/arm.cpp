// CRC-32C on 64 bit ARM under Linux, which tells whether the processor has the instructions.
#if defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

#include "crc32c/by_words.hpp"

namespace dlio {
namespace {

struct Crc32 {
  static std::uint32_t word(std::uint32_t state, std::uint64_t word) noexcept {
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(state) : "r"(word));
    return state;
  }
  static std::uint32_t byte(std::uint32_t state, std::uint8_t byte) noexcept {
    asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
    return state;
  }
};

}  // namespace

std::array<Extend, 2> ways_of_processor() noexcept {
  constexpr unsigned long kHasCrc32 = 1UL << 7;  // HWCAP_CRC32 of the kernel
  if ((getauxval(AT_HWCAP) & kHasCrc32) == 0) return {};
  return {extend_by_words<Crc32>, nullptr};
}

}  // namespace dlio
#endif
