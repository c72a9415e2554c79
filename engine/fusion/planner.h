// Which ready tensors run as one collective. Pure.
#pragma once

#include <cstddef>
#include <optional>

#include "core/collectives.h"
#include "core/memory.h"

namespace hvd {

struct FusionItem {
  std::optional<Kind> kind;  // none: it moves no data, such as a barrier, a join or an error
  bool is_adasum = false;    // runs apart from other allreduces
  int root = 0;
  std::size_t size_bytes = 0;
  bool is_alone = false;  // does not share its bucket
  Memory memory = Memory::kHost;
};

// Whether both can be in one bucket, if it is large enough: a bucket is a list of views, so dtypes,
// reduce ops and factors may differ.
bool may_share(const FusionItem& first, const FusionItem& item);

// The longest run of items that may share a bucket and whose bytes stay within the threshold, at
// least one item. Offer items from the front until one is refused.
class BucketPlan {
 public:
  explicit BucketPlan(std::size_t threshold_bytes) : threshold_bytes_(threshold_bytes) {}

  // True when `item` joins the bucket; after the first false the bucket is complete.
  bool accepts(const FusionItem& item);

 private:
  std::size_t threshold_bytes_;
  std::size_t count_ = 0;
  std::size_t size_bytes_ = 0;
  FusionItem first_{};
};

}  // namespace hvd
