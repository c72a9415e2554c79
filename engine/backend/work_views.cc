#include "backend/work_views.h"

#include <algorithm>

#include "core/error.h"

namespace hvd {

bool is_adasum(std::span<const Work> works) {
  const auto is = [](const Work& work) { return work.request->op == ReduceOp::kAdasum; };
  if (std::none_of(works.begin(), works.end(), is)) return false;
  if (!std::all_of(works.begin(), works.end(), is)) {
    throw Error(ErrorCode::kInternal, "a bucket mixes Adasum with another reduce op");
  }
  return true;
}

}  // namespace hvd
