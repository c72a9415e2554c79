#include "backend/backend.h"

#include <algorithm>

namespace hvd {

RowRange reducescatter_rows(std::int64_t dim0, int owner, int size) {
  const std::int64_t least = dim0 / size;
  const std::int64_t longer = dim0 % size;  // so many ranks get a row more
  return {.begin = owner * least + std::min<std::int64_t>(owner, longer),
          .count = least + (owner < longer ? 1 : 0)};
}

}  // namespace hvd
