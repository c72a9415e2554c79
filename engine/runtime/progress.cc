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
    const Step result = step_lanes(may_form);
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

Engine::Step Engine::step_lanes(bool may_form) {
  Step result = Step::kIdle;
  for_each_lane([&](Lane& lane) {
    if (!lane.is_active()) return;
    const bool has_moved = relay(lane);
    const Step step = has_moved ? Step::kProgressed : run_or_form(lane, may_form);
    if (step == Step::kProgressed || result == Step::kIdle) result = step;
  });
  return result;
}

// Failures on a GPU come to light only when somebody asks.
void Engine::watch_devices() {
  bool is_working = false;
  for_each_lane([&](Lane& lane) { is_working |= lane.backend->watch(); });
  has_device_work_.store(is_working);
}

Engine::Step Engine::run_or_form(Lane& lane, bool may_form) {
  if (lane.is_running) {
    const std::int64_t resumed_ns = lane.blocked_on == PeerWait{} ? 0 : now_ns();
    PeerWait blocked;
    if (!advance(lane, blocked)) {
      note_blocked(lane, blocked, resumed_ns);
      return Step::kBlocked;
    }
    if (resumed_ns != 0) end_wait(lane, resumed_ns);
    if (std::exchange(lane.must_meet, false)) {
      lane.backend->begin_meeting();
    } else {
      end_bucket(lane);
    }
    return Step::kProgressed;
  }
  if (!lane.board.has_bucket(lane.cursor)) {
    if (!may_form || !lane.board.has_ready()) return Step::kIdle;
    const SharedLock lock = lane.board.lock();
    if (!lane.board.has_bucket(lane.cursor) && !lane.board.form_bucket()) return Step::kIdle;
  }
  if (lane.relay != nullptr) lane.relay->announce();  // before this rank ends it
  begin_bucket(lane);
  return Step::kProgressed;
}

bool Engine::advance(Lane& lane, PeerWait& blocked) {
  try {
    return lane.backend->advance(blocked);
  } catch (const LinkLost& lost) {
    lose(lane, lost);
  } catch (const BadMessage& bad) {
    refuse(bad, lane.world_rank(bad.rank()));
  }
}

bool Engine::pump(Lane& lane) {
  try {
    return lane.relay != nullptr && lane.relay->pump();
  } catch (const LinkLost& lost) {
    lose(lane, lost);
  } catch (const BadMessage& bad) {
    refuse(bad, lane.world_rank(bad.rank()));
  }
}

// The leader passes on what other hosts need to know and what they say. True when anything moved.
bool Engine::relay(Lane& lane) {
  if (!pump(lane)) {
    const bool is_waiting = lane.flights.load() != 0 && !lane.is_running &&
                            !lane.board.has_bucket(lane.cursor) && !lane.board.has_ready();
    if (lane.relay != nullptr && is_waiting) {
      if (const auto loss = lane.relay->loss()) lose(lane, LinkLost(loss->first, loss->second));
    }
    return false;
  }
  // The other ranks of this host: nobody else rings for them.
  bool has_new = lane.board.has_ready();
  for (; lane.board.has_bucket(lane.buckets_told); ++lane.buckets_told) has_new = true;
  for (const int rank : lane.local) {
    if (has_new && rank != config_.rank) presence_.ring(rank);
  }
  return true;
}

void Engine::begin_bucket(Lane& lane) {
  lane.board.bucket_items(lane.cursor, lane.items);
  lane.entries.clear();
  lane.works_count = 0;
  lane.must_meet = false;
  const std::int64_t now = now_ns();
  recorder_.record({.time_ns = now,
                    .kind = EventKind::kBucketStart,
                    .process_set = static_cast<std::uint16_t>(lane.id),
                    .subject = lane.cursor,
                    .value = lane.items.size()});
  lane.is_running.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard guard(mutex_);
    Recorder::Batch events(recorder_, lane.items.size());
    for (const BucketItem& item : lane.items) resolve(lane, item, now, events);
  }
  lane.blocked_on = {};
  lane.waited_ns = 0;
  const auto works = std::span(lane.works).first(lane.works_count);
  counters_.buckets.add(1);
  if (works.size() > 1) counters_.fused_tensors.add(works.size());
  lane.bucket_bytes = 0;
  for (const Work& work : works) lane.bucket_bytes += work.request->size_bytes();
  const BucketTuning tuning = lane.board.tuning_of(lane.cursor);
  if (lane.id == 0) cycle_time_us_.store(tuning.cycle_time_us, std::memory_order_relaxed);
  lane.backend->begin(works.empty() ? Kind::kBarrier : works.front().request->kind, works,
                      tuning.cut);
}

void Engine::resolve(Lane& lane, const BucketItem& item, std::int64_t now,
                     Recorder::Batch& events) {
  lane.must_meet = lane.must_meet || lane.board.has_absent(item);
  const bool must_compare = config_.is_debug && is_to_be_compared(lane, item);
  if (lane.board.is_absent(item)) {
    resolve_absent(lane, item);
    return;
  }
  Entry& entry = lane.tensors.by_slot(item.slot);
  counters_.queued_ns.add_ns(now - entry.submitted_ns);
  events.add({.time_ns = now,
              .kind = EventKind::kFused,
              .process_set = static_cast<std::uint16_t>(lane.id),
              .subject = entry.label,
              .value = lane.cursor});
  if (const auto text = lane.board.error_of(item)) {
    finish(lane, entry, Error(ErrorCode::kMismatch, *text).of(title(lane, entry)), now);
    return;
  }
  entry.must_compare = must_compare;
  lane.entries.push_back(&entry);
  add_works(lane, entry, item);
}

// This rank has joined: it takes part with nothing, or zeros, and keeps no result. It also counts
// unnamed operations, so that running numbers agree when all go on.
void Engine::resolve_absent(Lane& lane, const BucketItem& item) {
  const Request& request = lane.board.request_of(item);
  if (request.is_unnamed) ++lane.auto_name(request);
  if (lane.board.error_of(item)) return;
  refuse_irreducible(lane, request);
  lane.board.tensors_of(item, lane.tensor_items);
  for (const BucketItem& tensor : lane.tensor_items) {
    if (Work* work = add_work(lane, lane.board.request_of(tensor), tensor)) {
      work->in = nullptr;
      work->out = nullptr;
      work->device = kHostDevice;
      work->flight = nullptr;
    }
  }
}

// Its requests are another rank's, which has been asked whether the kernels can do it; this one
// not.
void Engine::refuse_irreducible(const Lane& lane, const Request& request) {
  const auto reason =
      is_reduction(request.kind) ? reduction_refusal(request, lane.size()) : std::nullopt;
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

void Engine::add_works(Lane& lane, Entry& entry, const BucketItem& item) {
  const Request& request = entry.request();
  if (request.kind == Kind::kJoin) {
    const int last = lane.members[static_cast<std::size_t>(lane.board.last_of(item))];
    entry.outputs.push_back(make_integers(*outputs_, {last}, {}));
    return;
  }
  if (request.kind == Kind::kAllgather && entry.requests.size() > 1) {
    lane.board.tensors_of(item, lane.tensor_items);
  } else {
    lane.tensor_items.assign(entry.requests.size(), item);
  }
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    Work* work = add_work(lane, entry.requests[i], lane.tensor_items[i]);
    if (work == nullptr) continue;
    work->in = entry.tensors[i].in;
    work->out = entry.tensors[i].out;
    work->device = entry.tensors[i].device;
    work->flight = entry.flight.get();
    if (work->out != nullptr) continue;
    const int rank = lane.rank;
    entry.outputs.push_back(
        make_output(entry.tensors[i], entry.requests[i], result_rows(*work, rank, lane.size())));
    work->out = entry.outputs.back().data();
    if (request.kind != Kind::kAlltoall) continue;
    entry.outputs.push_back(
        make_integers(*outputs_, received_splits(*work, rank, lane.size()), {lane.size()}));
  }
}

// The next work of the bucket but for its addresses; null where there is nothing to move.
Work* Engine::add_work(Lane& lane, const Request& request, const BucketItem& item) {
  if (request.kind == Kind::kBarrier || request.kind == Kind::kJoin) return nullptr;
  if (lane.works.size() == lane.works_count) lane.works.emplace_back();
  Work& work = lane.works[lane.works_count++];
  work.request = &request;
  work.rows.clear();
  if (request.kind == Kind::kBroadcast) work.root = lane.set_rank_of(request.root);
  if (request.kind == Kind::kAlltoall) lane.board.splits_of(item, work.splits);
  if (request.kind != Kind::kAllgather) return &work;
  for (int rank = 0; rank < lane.size(); ++rank) {
    work.rows.push_back(lane.board.rows_of(item, rank));
  }
  return &work;
}

void Engine::end_bucket(Lane& lane) {
  lane.is_running.store(false, std::memory_order_relaxed);
  {
    // The board first: a caller that sees its handle done may submit the name again at once.
    const SharedLock lock = lane.board.lock();
    lane.board.finish_bucket(lane.cursor);
  }
  const std::int64_t now = now_ns();
  recorder_.record({.time_ns = now,
                    .kind = EventKind::kBucketDone,
                    .process_set = static_cast<std::uint16_t>(lane.id),
                    .subject = lane.cursor,
                    .value = static_cast<std::uint64_t>(lane.waited_ns)});
  counters_.waited_ns.add_ns(lane.waited_ns);
  last_done_ns_.store(now, std::memory_order_relaxed);
  ++lane.cursor;
  lane.bucket_done_ns = now;
  const std::lock_guard guard(mutex_);
  for (Entry* entry : lane.entries) {
    finish(lane, *entry, config_.is_debug ? examine(lane, *entry) : std::nullopt, now);
  }
}

void Engine::finish(Lane& lane, Entry& entry, const std::optional<Error>& error, std::int64_t now) {
  lane.tensors.land(entry);
  lane.flights.fetch_sub(1);
  if (error) {
    counters_.errors.add(1);
    recorder_.record({.time_ns = now,
                      .kind = EventKind::kError,
                      .process_set = static_cast<std::uint16_t>(lane.id),
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
  for_each_lane(
      [&](Lane& lane) { threads.push_back(quiet_thread([&lane] { lane.leave_devices(false); })); });
  for (std::thread& thread : threads) thread.join();
}

void Engine::fail_everything(const Error& error) {
  const std::lock_guard guard(mutex_);
  fatal_ = error;
  is_over_.store(true);
  for_each_lane([&](Lane& lane) { fail_lane(lane, error); });
  changed_.notify_all();
}

// Under mutex_, in the progress role.
void Engine::fail_lane(Lane& lane, const Error& error) {
  const std::int64_t now = now_ns();
  lane.is_running.store(false, std::memory_order_relaxed);
  while (!lane.tensors.in_flight().empty()) {
    Entry& entry = *lane.tensors.in_flight().back();
    finish(lane, entry, error.of(title(lane, entry)), now);
  }
}

}  // namespace hvd
