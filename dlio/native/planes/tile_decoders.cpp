#include <atomic>

#include "dispatch.hpp"
#include "planes/tile.hpp"

namespace dlio {
namespace {

// Processors of AMD before Zen 3 take hundreds of cycles to deposit bits; their families are below 25 (0x19). They do
// without, as ARM does.
std::vector<TileDecoder> decoders_of_processor() {
  std::vector<TileDecoder> decoders;
#ifdef DLIO_HAS_AVX2
  const bool deposits = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                        !__builtin_cpu_is("amdfam15h") && !__builtin_cpu_is("amdfam17h");
  if (deposits && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni")) {
    decoders.push_back({"avx512", decode_tile_avx512});
  }
  if (deposits) decoders.push_back({"avx2", decode_tile_avx2});
#endif
  decoders.push_back({"portable", decode_tile_on_any_processor});
  return decoders;
}

std::atomic<DecodeTile>& chosen() {
  static std::atomic<DecodeTile> decode{tile_decoders().front().decode};
  return decode;
}

}  // namespace

const std::vector<TileDecoder>& tile_decoders() {
  static const std::vector<TileDecoder> decoders = decoders_of_processor();
  return decoders;
}

DecodeTile tile_decoder() { return chosen().load(std::memory_order_relaxed); }

bool use_tile_decoder(const std::string& name) {
  for (const TileDecoder& decoder : tile_decoders()) {
    if (name != decoder.name) continue;
    chosen().store(decoder.decode, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace dlio
