#include "memory.hpp"

#include <cstring>

namespace dlio {

AlignedBytes allocate_aligned(std::size_t size) noexcept {
  return AlignedBytes(static_cast<std::uint8_t*>(::operator new(size, std::align_val_t{kAlignment}, std::nothrow)));
}

std::uint8_t* Scratch::at_least(std::size_t size) {
#ifdef DLIO_SANITIZED
  const bool fits = size == capacity_;  // AddressSanitizer sees the first byte beyond
#else
  const bool fits = size <= capacity_;
#endif
  if (!fits && !grow(size, 0)) throw std::bad_alloc();
  return data_.get();
}

bool Scratch::grow(std::size_t size, std::size_t used) noexcept {
  AlignedBytes larger = allocate_aligned(size);
  if (!larger) return false;
  if (used > 0) std::memcpy(larger.get(), data_.get(), used);
  data_ = std::move(larger);
  capacity_ = size;
  return true;
}

void Scratch::trim() noexcept {
  if (capacity_ <= kKeptBytes) return;
  data_.reset();
  capacity_ = 0;
}

}  // namespace dlio
