// How long the background thread lets ready tensors gather before it forms a bucket of them.
//
// With a core to spare it starts soon, to overlap with the computation. Without one it would only
// take turns with the computation, so it lets more gather and leaves the work to the thread that
// will wait for the results.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/bucket_runner.h"

namespace hvd {

class FormingDelay {
 public:
  FormingDelay(const World& world, const ProcessSets& sets, const Results& results,
               const BucketRunner& buckets)
      : world_(world), sets_(sets), results_(results), buckets_(buckets) {}

  // Any thread. How long what is ready waits for more, from the moment it was seen.
  Nanoseconds linger() const;
  // Are so many bytes worth a start at once?
  bool is_enough(std::size_t ready_bytes) const;
  // Threads that wait for a handle and leave progress to the background thread.
  void add_onlooker(int change) { onlookers_.fetch_add(change); }

  // The background thread.
  bool may_form();
  // From now on, where it has not begun.
  void begin();
  bool has_begun() const { return ready_since_ns_ != 0; }
  Nanoseconds left() const;

 private:
  const World& world_;
  const ProcessSets& sets_;
  const Results& results_;
  const BucketRunner& buckets_;
  std::atomic<int> onlookers_{0};
  std::int64_t ready_since_ns_ = 0;  // 0: nothing is ready
};

}  // namespace hvd
