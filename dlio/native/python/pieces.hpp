// The functions of the Python module that work on many small pieces of bytes.
#pragma once

#include <nanobind/nanobind.h>

namespace dlio {

void bind_pieces(nanobind::module_& module);

}  // namespace dlio
