// What the fuzz targets of the core have in common: wishes before the content, memory of exact sizes, and the end of a
// target that finds something broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "jpeg/codec.hpp"

inline constexpr std::size_t kWishBytes = 16;

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

inline std::int32_t wish(const std::uint8_t* bytes, int number) {
  std::int16_t value;
  std::memcpy(&value, bytes + 2 * number, sizeof value);
  return value;
}

// Memory of exactly this size.
struct Exact {
  explicit Exact(std::size_t size) : data(new std::uint8_t[size]), size(size) {}
  Exact(const std::uint8_t* from, std::size_t size) : Exact(size) { std::copy_n(from, size, data.get()); }

  dlio::Bytes bytes() const { return {data.get(), size}; }

  std::unique_ptr<std::uint8_t[]> data;
  std::size_t size;
};
