#include "dispatch.hpp"
#include "planes/tile.hpp"
#include "processor.hpp"

namespace dlio {
namespace {

#ifdef DLIO_HAS_AVX2
// Processors of AMD before Zen 3 take hundreds of cycles to deposit bits; their families are below 25 (0x19). They do
// without, as ARM does.
bool deposits_quickly() noexcept {
  return __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("amdfam15h") && !__builtin_cpu_is("amdfam17h");
}
#endif

}  // namespace

DecodeTile tile_decoder() noexcept {
#ifdef DLIO_HAS_AVX2
  static const bool deposits = deposits_quickly();
  if (deposits && back_end() == BackEnd::avx512) return decode_tile_avx512;
  if (deposits && back_end() == BackEnd::avx2) return decode_tile_avx2;
#endif
  return decode_tile_on_any_processor;
}

}  // namespace dlio
