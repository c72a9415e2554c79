// What the holder of the progress role does: run the buckets of every process set in the order of
// its board.
#include <algorithm>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "core/quiet_thread.h"
#include "runtime/engine.h"

namespace hvd {

namespace {

Output make_integers(OutputPool& pool, const std::vector<std::int64_t>& values,
                     std::vector<std::int64_t> shape) {
  Output output{.bytes = pool.allocate(values.size() * sizeof(std::int32_t)),
                .shape = std::move(shape)};
  std::ranges::transform(values, reinterpret_cast<std::int32_t*>(output.bytes.get()),
                         [](std::int64_t value) { return static_cast<std::int32_t>(value); });
  return output;
}

std::vector<std::int64_t> received_splits(const Work& work, int rank, int size) {
  std::vector<std::int64_t> received;
  for (int from = 0; from < size; ++from) {
    received.push_back(work.splits[static_cast<std::size_t>(from * size + rank)]);
  }
  return received;
}

// First dimension of the result on `rank`.
std::int64_t result_rows(const Work& work, int rank, int size) {
  switch (work.request->kind) {
    case Kind::kAllgather:
      return std::accumulate(work.rows.begin(), work.rows.end(), std::int64_t{0});
    case Kind::kAlltoall: {
      const std::vector<std::int64_t> received = received_splits(work, rank, size);
      return std::accumulate(received.begin(), received.end(), std::int64_t{0});
    }
    default:
      return reducescatter_rows(work.request->dims[0], rank, size).count;
  }
}

}  // namespace

Engine::Step Engine::step(bool may_form) {
  // An aborted bucket is still the next one on the board, but its tensors may be gone.
  if (is_over_.load()) return Step::kIdle;
  try {
    if (alarms_.count() != alarms_seen_) {
      tell_other_hosts();
      handle_alarm();
    }
    if (has_departures_.load() && fail_if_lost()) return Step::kIdle;
    const Step result = step_contexts(may_form);
    if (devices_.gpus != nullptr && devices_.gpus->is_open()) watch_devices();
    return result;
  } catch (const Error& error) {
    give_up(error);
  } catch (const std::bad_alloc&) {
    const Error error(ErrorCode::kSystem,
                      peer_name(config_.rank) + " has no memory left for a result");
    alarms_.raise({.code = error.code(), .rank = config_.rank, .text = error.what()});
    give_up(error);  // a bucket is half begun
  }
  return Step::kIdle;
}

Engine::Step Engine::step_contexts(bool may_form) {
  Step result = Step::kIdle;
  for_each_context([&](ProcessSetContext& context) {
    if (!context.is_active()) return;
    const bool has_moved = relay(context);
    const Step step = has_moved ? Step::kProgressed : run_or_form(context, may_form);
    if (step == Step::kProgressed || result == Step::kIdle) result = step;
  });
  return result;
}

// Failures on a GPU come to light only when somebody asks.
void Engine::watch_devices() {
  bool is_working = false;
  for_each_context([&](ProcessSetContext& context) { is_working |= context.backend->watch(); });
  has_device_work_.store(is_working);
}

Engine::Step Engine::run_or_form(ProcessSetContext& context, bool may_form) {
  if (context.is_running) {
    const std::int64_t resumed_ns = context.blocked_on == PeerWait{} ? 0 : now_ns();
    PeerWait blocked;
    if (!advance(context, blocked)) {
      note_blocked(context, blocked, resumed_ns);
      return Step::kBlocked;
    }
    if (resumed_ns != 0) end_wait(context, resumed_ns);
    if (std::exchange(context.must_meet, false)) {
      context.backend->begin_barrier();
    } else {
      end_bucket(context);
    }
    return Step::kProgressed;
  }
  if (!context.negotiation.has_bucket(context.cursor)) {
    if (!may_form || !context.negotiation.has_ready()) return Step::kIdle;
    const SharedLock lock = context.negotiation.lock();
    if (!context.negotiation.has_bucket(context.cursor) && !context.negotiation.form_bucket())
      return Step::kIdle;
  }
  if (context.relay != nullptr) context.relay->announce();  // before this rank ends it
  begin_bucket(context);
  return Step::kProgressed;
}

bool Engine::advance(ProcessSetContext& context, PeerWait& blocked) {
  try {
    return context.backend->advance(blocked);
  } catch (const LinkLost& lost) {
    lose(context, lost);
  } catch (const BadMessage& bad) {
    refuse(bad, context.world_rank(bad.rank()));
  }
}

bool Engine::pump(ProcessSetContext& context) {
  try {
    return context.relay != nullptr && context.relay->pump();
  } catch (const LinkLost& lost) {
    lose(context, lost);
  } catch (const BadMessage& bad) {
    refuse(bad, context.world_rank(bad.rank()));
  }
}

// The leader passes on what other hosts need to know and what they say. True when anything moved.
bool Engine::relay(ProcessSetContext& context) {
  if (!pump(context)) {
    const bool is_waiting = context.flights.load() != 0 && !context.is_running &&
                            !context.negotiation.has_bucket(context.cursor) &&
                            !context.negotiation.has_ready();
    if (context.relay != nullptr && is_waiting) {
      if (const auto loss = context.relay->loss())
        lose(context, LinkLost(loss->first, loss->second));
    }
    return false;
  }
  // The other ranks of this host: nobody else rings for them.
  bool has_new = context.negotiation.has_ready();
  for (; context.negotiation.has_bucket(context.buckets_told); ++context.buckets_told)
    has_new = true;
  for (const int rank : context.local) {
    if (has_new && rank != config_.rank) presence_.ring(rank);
  }
  return true;
}

void Engine::begin_bucket(ProcessSetContext& context) {
  context.negotiation.bucket_items(context.cursor, context.items);
  context.entries.clear();
  context.works_count = 0;
  context.must_meet = false;
  const std::int64_t now = now_ns();
  recorder_.record({.time_ns = now,
                    .kind = EventKind::kBucketStart,
                    .process_set = static_cast<std::uint16_t>(context.id),
                    .subject = context.cursor,
                    .value = context.items.size()});
  context.is_running.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard guard(mutex_);
    Recorder::Batch events(recorder_, context.items.size());
    for (const BucketItem& item : context.items) resolve(context, item, now, events);
  }
  context.blocked_on = {};
  context.waited_ns = 0;
  const auto works = std::span(context.works).first(context.works_count);
  counters_.buckets.add(1);
  if (works.size() > 1) counters_.fused_tensors.add(works.size());
  context.bucket_bytes = 0;
  for (const Work& work : works) context.bucket_bytes += work.request->size_bytes();
  const BucketTuning tuning = context.negotiation.tuning_of(context.cursor);
  if (context.id == 0) cycle_time_us_.store(tuning.cycle_time_us, std::memory_order_relaxed);
  context.backend->begin(works.empty() ? Kind::kBarrier : works.front().request->kind, works,
                         tuning.cut);
}

void Engine::resolve(ProcessSetContext& context, const BucketItem& item, std::int64_t now,
                     Recorder::Batch& events) {
  context.must_meet = context.must_meet || context.negotiation.has_absent(item);
  const bool must_compare = config_.is_debug && is_to_be_compared(context, item);
  if (context.negotiation.is_absent(item)) {
    resolve_absent(context, item);
    return;
  }
  Entry& entry = context.tensors.by_slot(item.slot);
  counters_.queued_ns.add_ns(now - entry.submitted_ns);
  events.add({.time_ns = now,
              .kind = EventKind::kFused,
              .process_set = static_cast<std::uint16_t>(context.id),
              .subject = entry.label,
              .value = context.cursor});
  if (const auto text = context.negotiation.error_of(item)) {
    finish(context, entry, Error(ErrorCode::kMismatch, *text).of(title(context, entry)), now);
    return;
  }
  entry.must_compare = must_compare;
  context.entries.push_back(&entry);
  add_works(context, entry, item);
}

// This rank has joined: it takes part with nothing, or zeros, and keeps no result. It also counts
// unnamed operations, so that running numbers agree when all go on.
void Engine::resolve_absent(ProcessSetContext& context, const BucketItem& item) {
  const Request& request = context.negotiation.request_of(item);
  if (request.is_unnamed) ++context.auto_name(request);
  if (context.negotiation.error_of(item)) return;
  refuse_irreducible(context, request);
  context.negotiation.tensors_of(item, context.tensor_items);
  for (const BucketItem& tensor : context.tensor_items) {
    if (Work* work = add_work(context, context.negotiation.request_of(tensor), tensor)) {
      work->in = nullptr;
      work->out = nullptr;
      work->device = kHostDevice;
      work->dependency = nullptr;
    }
  }
}

// Its requests are another rank's, which has been asked whether the kernels can do it; this one
// not.
void Engine::refuse_irreducible(const ProcessSetContext& context, const Request& request) {
  const auto reason =
      is_reduction(request.kind) ? reduction_refusal(request, context.size()) : std::nullopt;
  if (!reason) return;
  refuse(BadMessage({"bucket", "op", std::string(name_of(request.op)), *reason}), -1);
}

Output Engine::make_output(const Tensor& tensor, const Request& request, std::int64_t rows) {
  const std::size_t size_bytes =
      static_cast<std::size_t>(rows) * request.row_count() * size_of(request.dtype);
  Output output{.bytes = nullptr, .shape = {request.shape().begin(), request.shape().end()}};
  output.shape[0] = rows;
  if (tensor.device == kHostDevice) {
    output.bytes = outputs_->allocate(size_bytes);
  } else {
    output.block = devices_.gpus->open()->memory().allocate(tensor.device, size_bytes);
  }
  return output;
}

void Engine::add_works(ProcessSetContext& context, Entry& entry, const BucketItem& item) {
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
    work->dependency = entry.flight.get();
    if (work->out != nullptr) continue;
    const int rank = context.rank;
    entry.outputs.push_back(
        make_output(entry.tensors[i], entry.requests[i], result_rows(*work, rank, context.size())));
    work->out = entry.outputs.back().data();
    if (request.kind != Kind::kAlltoall) continue;
    entry.outputs.push_back(
        make_integers(*outputs_, received_splits(*work, rank, context.size()), {context.size()}));
  }
}

// The next work of the bucket but for its addresses; null where there is nothing to move.
Work* Engine::add_work(ProcessSetContext& context, const Request& request, const BucketItem& item) {
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

void Engine::end_bucket(ProcessSetContext& context) {
  context.is_running.store(false, std::memory_order_relaxed);
  {
    // The board first: a caller that sees its handle done may submit the name again at once.
    const SharedLock lock = context.negotiation.lock();
    context.negotiation.finish_bucket(context.cursor);
  }
  const std::int64_t now = now_ns();
  recorder_.record({.time_ns = now,
                    .kind = EventKind::kBucketDone,
                    .process_set = static_cast<std::uint16_t>(context.id),
                    .subject = context.cursor,
                    .value = static_cast<std::uint64_t>(context.waited_ns)});
  counters_.waited_ns.add_ns(context.waited_ns);
  last_done_ns_.store(now, std::memory_order_relaxed);
  ++context.cursor;
  context.bucket_done_ns = now;
  const std::lock_guard guard(mutex_);
  for (Entry* entry : context.entries) {
    finish(context, *entry, config_.is_debug ? examine(context, *entry) : std::nullopt, now);
  }
}

void Engine::finish(ProcessSetContext& context, Entry& entry, const std::optional<Error>& error,
                    std::int64_t now) {
  context.tensors.land(entry);
  context.flights.fetch_sub(1);
  if (error) {
    counters_.errors.add(1);
    recorder_.record({.time_ns = now,
                      .kind = EventKind::kError,
                      .process_set = static_cast<std::uint16_t>(context.id),
                      .subject = entry.label,
                      .value = static_cast<std::uint64_t>(error->code())});
  }
  entry.flight.reset();
  complete(entry.handle, entry.position, error, std::exchange(entry.outputs, {}));
}

// Under mutex_.
void Engine::complete(HandleId handle, std::size_t position, const std::optional<Error>& error,
                      std::vector<Output> outputs) {
  if (!handles_.complete(handle, position, error, std::move(outputs))) return;
  if (helpers_waiting_.load() != 0 || onlookers_.load() != 0) changed_.notify_all();
  if (!handles_.has_landed()) return;
  has_landed_.store(true);
  note_unattended();
}

// This rank takes part in nothing any more, which those who wait for it must know.
void Engine::give_up(const Error& error) {
  recorder_.record_now(
      {.kind = EventKind::kFailed, .value = static_cast<std::uint64_t>(error.code())});
  fail_everything(error);
  tracer_->want_file("error", error.what(), config_.rank);
  presence_.set_liveness(config_.rank, Liveness::kFailed);
  alarms_.touch();
  tell_other_hosts();
  wake_everyone();
  abort_devices();
  disconnect();
}

// All sets at once: what one runs on a GPU may be in the way of another's end.
void Engine::abort_devices() {
  if (gpus() == nullptr || !gpus()->is_open()) return;
  std::vector<std::thread> threads;
  for_each_context([&](ProcessSetContext& context) {
    threads.push_back(quiet_thread([&context] { context.leave_devices(false); }));
  });
  for (std::thread& thread : threads) thread.join();
}

void Engine::fail_everything(const Error& error) {
  const std::lock_guard guard(mutex_);
  fatal_ = error;
  is_over_.store(true);
  for_each_context([&](ProcessSetContext& context) { fail_context(context, error); });
  changed_.notify_all();
}

// Under mutex_, in the progress role.
void Engine::fail_context(ProcessSetContext& context, const Error& error) {
  const std::int64_t now = now_ns();
  context.is_running.store(false, std::memory_order_relaxed);
  while (!context.tensors.in_flight().empty()) {
    Entry& entry = *context.tensors.in_flight().back();
    finish(context, entry, error.of(title(context, entry)), now);
  }
}

}  // namespace hvd
