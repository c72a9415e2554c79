// How many bytes of a tensor a rank gives to a collective and gets from it.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "backend/carried.h"
#include "backend/work_views.h"

namespace hvd {

// Of an alltoall.
std::size_t split_bytes(const Work& work, int giver, int taker, int size);
// Whatever it gives where; 0 for who only takes part in a broadcast.
std::size_t given_bytes(const Work& work, Place place);
std::size_t taken_bytes(const Work& work, Place place);

}  // namespace hvd
