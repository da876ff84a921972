// The functions of dlio.native that change the images of a batch.
#pragma once

#include <nanobind/nanobind.h>

namespace dlio {

void bind_augment(nanobind::module_& module);

}  // namespace dlio
