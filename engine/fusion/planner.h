// Which ready tensors run as one collective. Pure: the board asks, and acts on the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hvd {

enum class FusionClass : std::uint8_t {
  kAlone = 0,      // never fused
  kAllreduce = 1,  // any dtypes, ops and factors: a bucket is a list of views, not one array
  kBroadcast = 2,  // same root only
  kAllgather = 3,
  kNothing = 4,  // moves no data: barrier, errors
};

struct FusionItem {
  FusionClass fusion_class;
  int root;
  std::size_t size_bytes;
};

// How many items from the front form the next bucket: the longest run of one class whose bytes stay
// within the threshold, at least one. `items` must not be empty.
std::size_t plan_bucket(std::span<const FusionItem> items, std::size_t threshold_bytes);

// Incremental form of the above, for callers that hold their items in another shape.
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
