// What decode_batch and resize_batch have in common.
#pragma once

#include "python/arrays.hpp"

namespace dlio {

// Returns the status that `place_one(i)` has for each image of the batch; one without a place is skipped.
template <class PlaceOne>
nb::object place_all(const BatchArrays& batch, PlaceOne place_one) {
  std::int32_t* status = nullptr;
  nb::object statuses = new_array({batch.num_images}, status);
  {
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < batch.num_images; ++i) {
      const Target target = batch.target(i);
      if (target.height > 0 && target.width > 0) status[i] = static_cast<std::int32_t>(place_one(i, target));
    }
  }
  return statuses;
}

}  // namespace dlio
