// Memory that is kept from one image to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace dlio {

// Memory above this size is given back after its image, so that one giant does not stay in every thread.
constexpr std::size_t kKeptBytes = std::size_t{64} << 20;

template <class Element>
void trim_kept(std::vector<Element>& vector) noexcept {
  if (vector.capacity() * sizeof(Element) > kKeptBytes) std::vector<Element>().swap(vector);
}

// Lends this thread's `Workspace` for one image; afterwards, on success or failure, trims it. A caller that asks while
// it is lent gets one of their own, for as long as they want it.
template <class Workspace>
class Kept {
 public:
  Kept() : of_thread_(of_this_thread()) {
    if (of_thread_.is_lent) own_ = std::make_unique<Workspace>();
    of_thread_.is_lent = true;
  }
  ~Kept() {
    if (own_) return;
    of_thread_.workspace.trim();
    of_thread_.is_lent = false;
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  Workspace& operator*() noexcept { return own_ ? *own_ : of_thread_.workspace; }
  Workspace* operator->() noexcept { return &**this; }

 private:
  struct Lent {
    Workspace workspace;
    bool is_lent = false;
  };
  static Lent& of_this_thread() {
    thread_local Lent lent;
    return lent;
  }

  Lent& of_thread_;
  std::unique_ptr<Workspace> own_;
};

constexpr std::size_t kAlignment = 64;

struct AlignedDelete {
  void operator()(std::uint8_t* data) const noexcept { ::operator delete(data, std::align_val_t{kAlignment}); }
};
using AlignedBytes = std::unique_ptr<std::uint8_t[], AlignedDelete>;

// Returns `size` uninitialised bytes, or nullptr where memory is out.
AlignedBytes allocate_aligned(std::size_t size) noexcept;

// An uninitialised buffer that only grows.
class Scratch {
 public:
  // Returns at least `size` bytes; what was in them is lost where the buffer has to grow. Throws std::bad_alloc.
  std::uint8_t* at_least(std::size_t size);
  // Makes room for `size` bytes and keeps the first `used`. Returns whether it could.
  bool grow(std::size_t size, std::size_t used) noexcept;
  void trim() noexcept;

  std::uint8_t* data() noexcept { return data_.get(); }
  const std::uint8_t* data() const noexcept { return data_.get(); }
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  AlignedBytes data_;
  std::size_t capacity_ = 0;
};

}  // namespace dlio
