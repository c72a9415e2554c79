// Runs the buckets of process sets, in the order of their negotiation tables. It prepares the
// works, lets the backend move the data, and completes the handles. In the progress role.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/common_parts.h"
#include "runtime/debug_checks.h"
#include "runtime/membership.h"

namespace hvd {

class BucketRunner : private CommonParts {
 public:
  BucketRunner(const CommonParts& common, Membership& membership, DebugChecks& debug);

  void begin(ProcessSetContext& context);
  // Continues the bucket. False when it waits for another rank.
  bool advance(ProcessSetContext& context);
  // Ends all operations of a set. Under the mutex.
  void fail(ProcessSetContext& context, const Error& error);

  // Any thread: the cycle time of the world's last bucket; 0: the engine decides.
  std::uint32_t cycle_time_us() const { return cycle_time_us_.load(std::memory_order_relaxed); }
  std::int64_t last_done_ns() const { return last_done_ns_.load(); }

 private:
  void resolve(ProcessSetContext& context, const BucketItem& item, std::int64_t now,
               Recorder::Batch& events);
  void resolve_absent(ProcessSetContext& context, const BucketItem& item);
  void refuse_impossible(const Request& request, int size);
  Output make_output(const Tensor& tensor, const Request& request, std::int64_t rows);
  DeviceBlockPtr allocate_on_gpu(int device, std::size_t size_bytes);
  void add_works(ProcessSetContext& context, Entry& entry, const BucketItem& item);
  KeptErrors* kept_errors_of(const ProcessSetContext& context, Entry& entry, std::size_t i) const;
  Work* add_work(ProcessSetContext& context, const Request& request, const BucketItem& item);
  void end(ProcessSetContext& context);
  void count_link_bytes(ProcessSetContext& context);
  void finish(ProcessSetContext& context, Entry& entry, const std::optional<Error>& error,
              std::int64_t now);
  void begin_wait(ProcessSetContext& context, const PeerWait& wait, std::int64_t resumed_ns);
  void end_wait(ProcessSetContext& context, std::int64_t now);
  void record_wait(const ProcessSetContext& context, EventKind kind, std::int64_t now,
                   std::uint64_t value);

  Membership& membership_;
  DebugChecks& debug_;
  const std::shared_ptr<OutputPool> outputs_ = std::make_shared<OutputPool>();
  std::atomic<std::uint32_t> cycle_time_us_;
  std::atomic<std::int64_t> last_done_ns_{0};
};

}  // namespace hvd
