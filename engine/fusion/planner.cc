#include "fusion/planner.h"

namespace hvd {

bool BucketPlan::accepts(const FusionItem& item) {
  if (count_ != 0) {
    if (item.is_alone || first_.is_alone) return false;
    if (item.fusion_class != first_.fusion_class || item.root != first_.root) return false;
    if (item.memory != first_.memory) return false;
    if (size_bytes_ + item.size_bytes > threshold_bytes_) return false;
  } else {
    first_ = item;
  }
  ++count_;
  size_bytes_ += item.size_bytes;
  return true;
}

}  // namespace hvd
