#include "fusion/planner.h"

namespace hvd {

bool BucketPlan::accepts(const FusionItem& item) {
  if (count_ != 0) {
    const bool same = item.fusion_class == first_.fusion_class && item.root == first_.root;
    if (!same || first_.fusion_class == FusionClass::kAlone) return false;
    if (size_bytes_ + item.size_bytes > threshold_bytes_) return false;
  } else {
    first_ = item;
  }
  ++count_;
  size_bytes_ += item.size_bytes;
  return true;
}

std::size_t plan_bucket(std::span<const FusionItem> items, std::size_t threshold_bytes) {
  BucketPlan plan(threshold_bytes);
  std::size_t count = 0;
  while (count < items.size() && plan.accepts(items[count])) ++count;
  return count;
}

}  // namespace hvd
