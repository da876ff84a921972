// The back ends for x86-64 processors.
#pragma once

#include "pixels/kernels.hpp"

namespace dlio {

extern const PixelKernels kAvx2Kernels, kAvx512Kernels;

}  // namespace dlio
