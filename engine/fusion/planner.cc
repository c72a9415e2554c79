#include "fusion/planner.h"

namespace hvd {

bool may_share(const FusionItem& first, const FusionItem& item) {
  return item.kind == first.kind && item.is_adasum == first.is_adasum && item.root == first.root &&
         item.memory == first.memory;
}

bool BucketPlan::accepts(const FusionItem& item) {
  if (count_ != 0) {
    if (item.is_alone || first_.is_alone) return false;
    if (!may_share(first_, item)) return false;
    if (size_bytes_ + item.size_bytes > threshold_bytes_) return false;
  } else {
    first_ = item;
  }
  ++count_;
  size_bytes_ += item.size_bytes;
  return true;
}

}  // namespace hvd
