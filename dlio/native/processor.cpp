#include "processor.hpp"

#include <atomic>

#include "dispatch.hpp"

namespace dlio {
namespace {

std::vector<BackEnd> back_ends_of_processor() {
  std::vector<BackEnd> found;
#ifdef DLIO_HAS_AVX2
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni")) {
    found.push_back(BackEnd::avx512);
  }
  if (has_avx2) found.push_back(BackEnd::avx2);
#endif
  found.push_back(BackEnd::any_processor);
  return found;
}

std::atomic<BackEnd>& chosen() noexcept {
  static std::atomic<BackEnd> back_end{back_ends().front()};
  return back_end;
}

}  // namespace

const std::vector<BackEnd>& back_ends() {
  static const std::vector<BackEnd> found = back_ends_of_processor();
  return found;
}

const char* name_of(BackEnd back_end) noexcept {
  switch (back_end) {
    case BackEnd::avx512:
      return "avx512";
    case BackEnd::avx2:
      return "avx2";
    case BackEnd::any_processor:
      break;
  }
  return "portable";
}

BackEnd back_end() noexcept { return chosen().load(std::memory_order_relaxed); }

bool use_back_end(const std::string& name) {
  for (const BackEnd found : back_ends()) {
    if (name != name_of(found)) continue;
    chosen().store(found, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace dlio
