#include "pixels/kernels.hpp"

#include "dispatch.hpp"
#include "pixels/x86.hpp"
#include "processor.hpp"

namespace dlio {

const PixelKernels* pixel_kernels() noexcept {
#ifdef DLIO_HAS_AVX2
  if (back_end() == BackEnd::avx512) return &kAvx512Kernels;
  if (back_end() == BackEnd::avx2) return &kAvx2Kernels;
#endif
  return nullptr;
}

}  // namespace dlio
