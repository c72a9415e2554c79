#include "runtime/bucket_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/submission.h"

namespace hvd {

namespace {

WaitPhase phase_of(const PeerWait& wait) {
  if (wait.is_polled) return WaitPhase::kDataPlane;
  return wait.rank < 0 ? WaitPhase::kLink : static_cast<WaitPhase>(wait.counter);
}

Output make_integers(OutputPool& pool, const std::vector<std::int64_t>& values,
                     std::vector<std::int64_t> shape) {
  Output output{.bytes = pool.allocate(values.size() * sizeof(std::int32_t)),
                .shape = std::move(shape)};
  std::ranges::transform(values, reinterpret_cast<std::int32_t*>(output.bytes.get()),
                         [](std::int64_t value) { return static_cast<std::int32_t>(value); });
  return output;
}

std::vector<std::int64_t> received_splits(const Work& work, const ProcessSetContext& context) {
  std::vector<std::int64_t> received;
  for (int from = 0; from < context.size(); ++from) {
    received.push_back(work.splits[static_cast<std::size_t>(from * context.size() + context.rank)]);
  }
  return received;
}

}  // namespace

BucketRunner::BucketRunner(const CommonParts& common, Membership& membership, DebugChecks& debug)
    : CommonParts(common),
      membership_(membership),
      debug_(debug),
      cycle_time_us_(world_.config.tuning.bucket.cycle_time_us) {}

void BucketRunner::begin(ProcessSetContext& context) {
  context.negotiation.bucket_items(context.cursor, context.items);
  context.entries.clear();
  context.works_count = 0;
  context.must_sync = false;
  const std::int64_t now = now_ns();
  recorder_.record(
      context.event(EventKind::kBucketStart, now, context.cursor, context.items.size()));
  context.is_running.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard guard(lock_.mutex);
    Recorder::Batch events(recorder_, context.items.size());
    for (const BucketItem& item : context.items) resolve(context, item, now, events);
  }
  context.blocked_on = {};
  context.waited_ns = 0;
  const auto works = std::span(context.works).first(context.works_count);
  counters_.buckets.add(1);
  if (works.size() > 1) counters_.fused_tensors.add(works.size());
  const BucketTuning tuning = context.negotiation.tuning_of(context.cursor);
  context.bucket_bytes = 0;
  for (const Work& work : works) context.bucket_bytes += work.request->size_bytes();
  if (context.spans_hosts()) {
    for (Work& work : works) {
      work.format = decided(work.request->format, tuning.link_format);
      if (work.kept != nullptr) feed_back(work);
    }
  }
  if (context.id == 0) cycle_time_us_.store(tuning.cycle_time_us, std::memory_order_relaxed);
  context.backend->begin(works.empty() ? Kind::kBarrier : works.front().request->kind, works,
                         tuning.cut);
}

bool BucketRunner::advance(ProcessSetContext& context) {
  const std::int64_t resumed_ns = context.blocked_on == PeerWait{} ? 0 : now_ns();
  PeerWait blocked;
  if (!membership_.guard(context, [&] { return context.backend->advance(blocked); })) {
    begin_wait(context, blocked, resumed_ns);
    return false;
  }
  if (resumed_ns != 0) end_wait(context, resumed_ns);
  if (std::exchange(context.must_sync, false)) {
    context.backend->begin_barrier();
  } else {
    end(context);
  }
  return true;
}

// `resumed_ns`: the end of the wait before this one; 0 for the first wait.
void BucketRunner::begin_wait(ProcessSetContext& context, const PeerWait& wait,
                              std::int64_t resumed_ns) {
  if (wait.is_polled) context.look_at_ns = now_ns() + context.backend->pause().count();
  if (wait == context.blocked_on) return;
  if (resumed_ns != 0) end_wait(context, resumed_ns);
  context.blocked_since_ns = now_ns();
  context.blocked_on = wait;
  record_wait(context, EventKind::kWait, context.blocked_since_ns, wait.target);
}

void BucketRunner::end_wait(ProcessSetContext& context, std::int64_t now) {
  const std::int64_t waited_ns = now - context.blocked_since_ns;
  context.waited_ns += waited_ns;
  if (waited_ns >= kLongWait.count()) {
    record_wait(context, EventKind::kWaited, now, static_cast<std::uint64_t>(waited_ns));
  }
  context.blocked_on = {};
}

void BucketRunner::record_wait(const ProcessSetContext& context, EventKind kind, std::int64_t now,
                               std::uint64_t value) {
  const PeerWait& wait = context.blocked_on;
  const auto rank = static_cast<std::uint32_t>(context.awaited(wait));
  Event event = context.event(kind, now, rank, value);
  event.detail = static_cast<std::uint8_t>(phase_of(wait));
  recorder_.record(event);
}

void BucketRunner::resolve(ProcessSetContext& context, const BucketItem& item, std::int64_t now,
                           Recorder::Batch& events) {
  context.must_sync = context.must_sync || context.negotiation.has_absent(item);
  const bool must_compare = world_.config.is_debug && debug_.must_compare(context, item);
  if (context.negotiation.is_absent(item)) {
    resolve_absent(context, item);
    return;
  }
  Entry& entry = context.tensors.by_slot(item.slot);
  counters_.queued_ns.add_ns(now - entry.submitted_ns);
  events.add(context.event(EventKind::kFused, now, entry.label, context.cursor));
  if (const auto text = context.negotiation.error_of(item)) {
    finish(context, entry, Error(ErrorCode::kMismatch, *text).of(context.title_of(entry)), now);
    return;
  }
  entry.must_compare = must_compare;
  context.entries.push_back(&entry);
  add_works(context, entry, item);
}

// This rank has joined. It takes part with zeros or no data, and keeps no result. It also counts
// operations without a name, so that running numbers agree when all ranks go on.
void BucketRunner::resolve_absent(ProcessSetContext& context, const BucketItem& item) {
  const Request& request = context.negotiation.request_of(item);
  if (request.numbering != Numbering::kNone) ++context.running_number(request, request.numbering);
  if (context.negotiation.error_of(item)) return;
  context.negotiation.tensors_of(item, context.tensor_items);
  for (const BucketItem& tensor : context.tensor_items) {
    const Request& each = context.negotiation.request_of(tensor);
    refuse_impossible(each, context.size());
    if (Work* work = add_work(context, each, tensor)) {
      work->in = nullptr;
      work->out = nullptr;
      work->device = kHostDevice;
      work->dependency = nullptr;
      work->block = nullptr;
      work->errors = nullptr;
      work->kept = nullptr;
      work->rounding = {};  // the number of this use is not known here
    }
  }
}

// The request comes from another rank. This rank has not checked whether the kernels can do it.
void BucketRunner::refuse_impossible(const Request& request, int size) {
  if (!is_reduction(request.kind)) return;
  if (const auto reason = reduction_refusal(request, size)) {
    throw failures_.raise(BadMessage({"bucket", "op", std::string(name_of(request.op)), *reason}),
                          -1);
  }
}

Output BucketRunner::make_output(const Tensor& tensor, const Request& request, std::int64_t rows) {
  const std::size_t size_bytes = bytes_of_rows(request, rows);
  Output output{.bytes = nullptr, .shape = {request.shape().begin(), request.shape().end()}};
  output.shape[0] = rows;
  if (tensor.device == kHostDevice) {
    output.bytes = outputs_->allocate(size_bytes);
  } else {
    output.block = allocate_on_gpu(tensor.device, size_bytes);
  }
  return output;
}

DeviceBlockPtr BucketRunner::allocate_on_gpu(int device, std::size_t size_bytes) {
  try {
    return sets_.gpus()->open()->memory().allocate(device, size_bytes);
  } catch (const Error& error) {  // CUDA's text does not name the rank
    throw Error(error.code(), world_.peer_name(world_.config.rank) + ": " + error.what());
  }
}

void BucketRunner::add_works(ProcessSetContext& context, Entry& entry, const BucketItem& item) {
  const Request& request = entry.request();
  if (request.kind == Kind::kJoin) {
    const int last = context.members[static_cast<std::size_t>(context.negotiation.last_of(item))];
    entry.outputs.push_back(make_integers(*outputs_, {last}, {}));
    return;
  }
  if (request.kind == Kind::kAllgather && entry.requests.size() > 1) {
    context.negotiation.tensors_of(item, context.tensor_items);
  } else {
    context.tensor_items.assign(entry.requests.size(), item);
  }
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    Work* work = add_work(context, entry.requests[i], context.tensor_items[i]);
    if (work == nullptr) continue;
    work->in = entry.tensors[i].in;
    work->out = entry.tensors[i].out;
    work->device = entry.tensors[i].device;
    work->dependency = entry.dependency.get();
    work->block = nullptr;
    work->errors = entry.tensors[i].errors;
    work->kept = kept_errors_of(context, entry, i);
    work->rounding = entry.rounding.of(i);
    if (collective_of(request.kind).keeps_shape()) continue;
    const std::int64_t rows = result_rows(*work, {.rank = context.rank, .size = context.size()});
    const std::size_t out_bytes = entry.tensors[i].out_bytes;
    if (work->out != nullptr && out_bytes == bytes_of_rows(entry.requests[i], rows)) continue;
    entry.outputs.push_back(make_output(entry.tensors[i], entry.requests[i], rows));
    work->out = entry.outputs.back().data();
    work->block = entry.outputs.back().block.get();
    entry.outputs.back().hides_unequal_rows = hides_unequal_rows(*work, rows);
    if (request.kind != Kind::kAlltoall) continue;
    entry.outputs.push_back(
        make_integers(*outputs_, received_splits(*work, context), {context.size()}));
  }
}

// Where the engine keeps the errors of a tensor; null where it does not: the caller does, the
// tensor is exact, or its name will not come again. That is known of numbered names; of others it
// is assumed until they come a second time, so that ever new names take no memory.
KeptErrors* BucketRunner::kept_errors_of(const ProcessSetContext& context, Entry& entry,
                                         std::size_t i) const {
  const Request& request = entry.requests[i];
  if (!world_.config.formats.is_feeding_back || !context.spans_hosts()) return nullptr;
  if (!may_be_low_bit(request.format) || request.numbering != Numbering::kNone) return nullptr;
  if (entry.tensors[i].errors != nullptr || entry.uses < 2) return nullptr;
  // Errors of another shape or dtype are of no use.
  if (std::exchange(entry.kept_signature, entry.signature) != entry.signature) {
    entry.kept_errors.clear();
  }
  if (entry.kept_errors.size() <= i) entry.kept_errors.resize(entry.requests.size());
  return &entry.kept_errors[i];
}

// The next work of the bucket, without its addresses; null if there is no data to move.
Work* BucketRunner::add_work(ProcessSetContext& context, const Request& request,
                             const BucketItem& item) {
  if (request.kind == Kind::kBarrier || request.kind == Kind::kJoin) return nullptr;
  if (context.works.size() == context.works_count) context.works.emplace_back();
  Work& work = context.works[context.works_count++];
  work.request = &request;
  work.rows.clear();
  if (request.kind == Kind::kBroadcast) work.root = context.set_rank_of(request.root);
  if (request.kind == Kind::kAlltoall) context.negotiation.splits_of(item, work.splits);
  if (request.kind != Kind::kAllgather) return &work;
  for (int rank = 0; rank < context.size(); ++rank) {
    work.rows.push_back(context.negotiation.rows_of(item, rank));
  }
  return &work;
}

void BucketRunner::end(ProcessSetContext& context) {
  context.is_running.store(false, std::memory_order_relaxed);
  {
    // Before the handle is done: its caller may submit the name again at once.
    const SharedLock lock = context.negotiation.lock();
    context.negotiation.finish_bucket(context.cursor);
  }
  const std::int64_t now = now_ns();
  recorder_.record(context.event(EventKind::kBucketDone, now, context.cursor,
                                 static_cast<std::uint64_t>(context.waited_ns)));
  counters_.waited_ns.add_ns(context.waited_ns);
  count_link_bytes(context);
  last_done_ns_.store(now, std::memory_order_relaxed);
  ++context.cursor;
  context.bucket_done_ns = now;
  const std::lock_guard guard(lock_.mutex);
  for (Entry* entry : context.entries) {
    finish(context, *entry, world_.config.is_debug ? debug_.examine(context, *entry) : std::nullopt,
           now);
  }
}

void BucketRunner::count_link_bytes(ProcessSetContext& context) {
  const std::uint64_t bytes = context.backend->link_bytes();
  counters_.link_bytes.add(bytes - context.link_bytes);
  context.link_bytes = bytes;
}

void BucketRunner::finish(ProcessSetContext& context, Entry& entry,
                          const std::optional<Error>& error, std::int64_t now) {
  context.tensors.end(entry);
  context.pending.fetch_sub(1);
  if (error) {
    counters_.errors.add(1);
    recorder_.record(context.event(EventKind::kError, now, entry.label,
                                   static_cast<std::uint64_t>(error->code())));
  }
  entry.dependency.reset();
  results_.complete(entry.handle, entry.position, error, std::exchange(entry.outputs, {}));
}

void BucketRunner::fail(ProcessSetContext& context, const Error& error) {
  const std::int64_t now = now_ns();
  context.is_running.store(false, std::memory_order_relaxed);
  while (!context.tensors.in_flight().empty()) {
    Entry& entry = *context.tensors.in_flight().back();
    finish(context, entry, error.of(context.title_of(entry)), now);
  }
}

}  // namespace hvd
