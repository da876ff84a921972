#include "jpeg/arena.hpp"

#include <algorithm>
#include <cstring>

#include <jerror.h>

// libjpeg declares these types and leaves them to the memory manager.
struct jvirt_barray_control {
  JBLOCKARRAY rows;
  JDIMENSION num_rows;
};

namespace dlio {
namespace {

constexpr std::size_t kFirstBlockBytes = std::size_t{1} << 20;

constexpr std::size_t round_up(std::size_t size) noexcept { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void* allocate_or_fail(j_common_ptr codec, std::size_t size) {
  void* memory = static_cast<Arena*>(codec->client_data)->allocate(size);
  if (memory == nullptr) ERREXIT1(codec, JERR_OUT_OF_MEMORY, 0);
  return memory;
}

void* allocate_object(j_common_ptr codec, int, std::size_t size) { return allocate_or_fail(codec, size); }

// Returns `num_rows` pointers to rows that lie one after another.
template <class Element>
Element** allocate_rows(j_common_ptr codec, std::size_t row_bytes, std::size_t num_rows) {
  auto** rows = static_cast<Element**>(allocate_or_fail(codec, num_rows * sizeof(Element*)));
  auto* data = static_cast<std::uint8_t*>(allocate_or_fail(codec, num_rows * row_bytes));
  for (std::size_t i = 0; i < num_rows; ++i) rows[i] = reinterpret_cast<Element*>(data + i * row_bytes);
  return rows;
}

JSAMPARRAY allocate_samples(j_common_ptr codec, int, JDIMENSION samples_per_row, JDIMENSION num_rows) {
  return allocate_rows<JSAMPLE>(codec, round_up(samples_per_row * sizeof(JSAMPLE)), num_rows);
}

JBLOCKARRAY allocate_blocks(j_common_ptr codec, int, JDIMENSION blocks_per_row, JDIMENSION num_rows) {
  return allocate_rows<JBLOCK>(codec, blocks_per_row * sizeof(JBLOCK), num_rows);
}

jvirt_barray_ptr request_blocks(j_common_ptr codec, int pool, boolean pre_zero, JDIMENSION blocks_per_row,
                                JDIMENSION num_rows, JDIMENSION) {
  auto* array = static_cast<jvirt_barray_ptr>(allocate_or_fail(codec, sizeof(jvirt_barray_control)));
  array->rows = allocate_blocks(codec, pool, blocks_per_row, num_rows);
  array->num_rows = num_rows;
  if (pre_zero && num_rows > 0) std::memset(array->rows[0], 0, std::size_t{num_rows} * blocks_per_row * sizeof(JBLOCK));
  return array;
}

// libjpeg's own would wait for realize_virt_arrays, and never be freed.
jvirt_sarray_ptr refuse_samples(j_common_ptr codec, int, boolean, JDIMENSION, JDIMENSION, JDIMENSION) {
  ERREXIT(codec, JERR_NOTIMPL);
  return nullptr;
}

void realize_nothing(j_common_ptr) {}

JBLOCKARRAY access_blocks(j_common_ptr codec, jvirt_barray_ptr array, JDIMENSION first, JDIMENSION count, boolean) {
  if (first > array->num_rows || count > array->num_rows - first) ERREXIT(codec, JERR_BAD_VIRTUAL_ACCESS);
  return array->rows + first;
}

void free_pool(j_common_ptr codec, int) { static_cast<Arena*>(codec->client_data)->reset(); }

}  // namespace

void Arena::attach(j_common_ptr codec) noexcept {
  codec->client_data = this;
  jpeg_memory_mgr* memory = codec->mem;
  memory->alloc_small = allocate_object;
  memory->alloc_large = allocate_object;
  memory->alloc_sarray = allocate_samples;
  memory->alloc_barray = allocate_blocks;
  memory->request_virt_sarray = refuse_samples;
  memory->request_virt_barray = request_blocks;
  memory->realize_virt_arrays = realize_nothing;
  memory->access_virt_barray = access_blocks;
  memory->free_pool = free_pool;
}

void* Arena::allocate(std::size_t size) noexcept {
  const std::size_t taken = round_up(size) + kAlignment;
  if (taken < size) return nullptr;
  if ((blocks_.empty() || blocks_.back().size - used_ < taken) && !add_block(taken)) return nullptr;
  void* memory = blocks_.back().data.get() + used_;
  used_ += taken;
  return memory;
}

bool Arena::add_block(std::size_t size) noexcept {
  const std::size_t block_size = std::max({size, total_, kFirstBlockBytes});
  AlignedBytes data = allocate_aligned(block_size);
  if (!data) return false;
  try {
    blocks_.push_back({std::move(data), block_size});
  } catch (const std::bad_alloc&) {
    return false;
  }
  used_ = 0;
  total_ += block_size;
  return true;
}

// Replaces several blocks by one of their size, so that an image like the last one finds room without malloc.
void Arena::reset() noexcept {
  used_ = 0;
  if (blocks_.size() <= 1 && total_ <= kKeptBytes) return;
  const std::size_t size = total_;
  blocks_.clear();
  total_ = 0;
  if (size <= kKeptBytes) add_block(size);
}

}  // namespace dlio
