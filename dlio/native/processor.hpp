// Which of the inner loops that are written for a kind of processor run on this one.
#pragma once

#include <string>
#include <vector>

namespace dlio {

// Each has what the one before has. avx512 stands for F, BW, VL, VBMI, VNNI and GFNI, which came together (Intel's Ice
// Lake, AMD's Zen 4).
enum class BackEnd { any_processor, avx2, avx512 };

// Returns those that this processor has, the quickest first.
const std::vector<BackEnd>& back_ends();

const char* name_of(BackEnd back_end) noexcept;

// The one that is used: the quickest, or that which a test or a benchmark has chosen by its name for all images of the
// process from the next one on. Both may be called by any thread.
BackEnd back_end() noexcept;
bool use_back_end(const std::string& name);

}  // namespace dlio
