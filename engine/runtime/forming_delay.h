// How long the background thread lets ready tensors gather before it forms a bucket.
//
// With a spare core it starts soon, to overlap with the computation. Without one it would only take
// time from the computation. So it lets more tensors gather, and leaves the work to the thread that
// will wait for the results.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/bucket_runner.h"
#include "runtime/common_parts.h"

namespace hvd {

class FormingDelay : private CommonParts {
 public:
  FormingDelay(const CommonParts& common, const BucketRunner& buckets)
      : CommonParts(common), buckets_(buckets) {}

  // Any thread. So long ready tensors wait for more, from the moment when the first one was seen.
  Nanoseconds linger() const;
  // Whether so many bytes are worth an immediate start.
  bool is_enough(std::size_t ready_bytes) const;
  // Counts threads that wait for a handle while the background thread makes progress.
  void add_onlooker(int change) { onlookers_.fetch_add(change); }

  // The background thread.
  bool may_form();
  // Begins the delay, unless it has begun.
  void begin();
  bool has_begun() const { return ready_since_ns_ != 0; }
  Nanoseconds left() const;

 private:
  const BucketRunner& buckets_;
  std::atomic<int> onlookers_{0};
  std::int64_t ready_since_ns_ = 0;  // 0: nothing is ready
};

}  // namespace hvd
