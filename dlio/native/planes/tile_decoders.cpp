#include "dispatch.hpp"
#include "planes/tile.hpp"
#include "processor.hpp"

namespace dlio {

#ifdef DLIO_HAS_AVX2
// Processors of AMD before Zen 3 take hundreds of cycles to deposit bits; their families are below 25 (0x19). They do
// without, as ARM does.
bool deposits_quickly() noexcept {
  static const bool deposits =
      __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("amdfam15h") && !__builtin_cpu_is("amdfam17h");
  return deposits && back_end() != BackEnd::any_processor;
}
#endif

DecodeTile tile_decoder() noexcept {
#ifdef DLIO_HAS_AVX2
  if (deposits_quickly()) return back_end() == BackEnd::avx512 ? decode_tile_avx512 : decode_tile_avx2;
#endif
  return decode_tile_on_any_processor;
}

}  // namespace dlio
