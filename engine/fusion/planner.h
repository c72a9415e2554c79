// Which ready tensors run as one collective. Pure: the board asks, and acts on the answer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/memory.h"

namespace hvd {

enum class FusionClass : std::uint8_t {
  kAllreduce = 0,  // any dtypes, ops and factors: a bucket is a list of views, not one array
  kBroadcast = 1,  // same root only
  kAllgather = 2,
  kNothing = 3,  // moves no data: barrier, join, errors
  kAlltoall = 4,
  kReducescatter = 5,
  kAdasum = 6,  // an allreduce of another kind
};

struct FusionItem {
  FusionClass fusion_class;
  int root;
  std::size_t size_bytes;
  bool is_alone = false;  // shares its bucket with nothing
  Memory memory = Memory::kHost;
};

// Can both be in one bucket, if it is large enough?
bool may_share(const FusionItem& first, const FusionItem& item);

// The longest run of one class whose bytes stay within the threshold, at least one item: offer
// items from the front until one is refused.
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
