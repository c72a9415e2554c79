#include "runtime/progress.h"

#include <new>

namespace hvd {

namespace {

// A library may notice that a rank is gone before the ranks know which one: the system closes a
// process' connections before it tells others of its end.
constexpr Nanoseconds kNamePatience = std::chrono::seconds(3);

}  // namespace

Progress::Progress(const CommonParts& common, Membership& membership, BucketRunner& buckets,
                   StallMonitor& stalls, Tracer& tracer)
    : CommonParts(common),
      membership_(membership),
      buckets_(buckets),
      stalls_(stalls),
      tracer_(tracer) {}

Progress::Step Progress::step(bool may_form) {
  // The table still has an aborted bucket as the next one, but its tensors may be gone.
  if (results_.is_over()) return Step::kIdle;
  try {
    if (membership_.has_new_alarm() || membership_.has_departures()) {
      if (const auto error = membership_.find_end()) {
        give_up(*error);
        return Step::kIdle;
      }
    }
    if (awaits_name()) return Step::kBlocked;
    const Step result = step_contexts(may_form);
    if (sets_.has_open_gpus()) watch_devices();
    return result;
  } catch (const UnnamedLoss& loss) {
    unnamed_loss_ = loss;
    name_deadline_ns_ = now_ns() + kNamePatience.count();
    has_device_work_.store(true);  // it may not have been noted yet, and is not done
    return Step::kBlocked;
  } catch (const Error& error) {
    give_up(error);
  } catch (const std::bad_alloc&) {  // a bucket could not begin
    const int rank = world_.config.rank;
    const Error error(ErrorCode::kSystem,
                      world_.peer_name(rank) + " has no memory left for a result");
    world_.alarms.raise({.code = error.code(), .rank = rank, .text = error.what()});
    give_up(error);
  }
  return Step::kIdle;
}

// Throws the loss when the time is over and no rank is known to be lost.
bool Progress::awaits_name() {
  if (!unnamed_loss_) return false;
  if (now_ns() >= name_deadline_ns_) throw Error(*unnamed_loss_);
  return true;
}

Progress::Step Progress::step_contexts(bool may_form) {
  Step result = Step::kIdle;
  sets_.for_each([&](ProcessSetContext& context) {
    if (!context.is_active()) return;
    const bool has_moved = context.relay != nullptr && relay(context);
    const Step step = has_moved ? Step::kProgressed : run_or_form(context, may_form);
    if (step == Step::kProgressed || result == Step::kIdle) result = step;
  });
  return result;
}

// A GPU reports failures only when asked.
void Progress::watch_devices() {
  bool is_working = false;
  sets_.for_each([&](ProcessSetContext& context) { is_working |= context.backend->watch(); });
  has_device_work_.store(is_working);
}

Progress::Step Progress::run_or_form(ProcessSetContext& context, bool may_form) {
  if (context.is_running) return buckets_.advance(context) ? Step::kProgressed : Step::kBlocked;
  NegotiationTable& negotiation = context.negotiation;
  if (!negotiation.has_bucket(context.cursor)) {
    if (!may_form || !negotiation.has_ready()) return Step::kIdle;
    const SharedLock lock = negotiation.lock();
    if (!negotiation.has_bucket(context.cursor) && !negotiation.form_bucket()) return Step::kIdle;
  }
  if (context.relay != nullptr) context.relay->announce();  // before this rank ends it
  buckets_.begin(context);
  return Step::kProgressed;
}

// The leader passes on messages to and from other hosts. True when anything moved.
bool Progress::relay(ProcessSetContext& context) {
  if (membership_.guard(context, [&] { return context.relay->pump(); })) {
    ring_for_relay(context);
    return true;
  }
  const bool is_waiting = context.pending.load() != 0 && !context.is_running &&
                          !context.negotiation.has_bucket(context.cursor) &&
                          !context.negotiation.has_ready();
  if (!is_waiting && !context.awaits_number()) return false;
  if (const auto loss = context.relay->loss())
    membership_.lose(context, LinkLost(loss->first, loss->second));
  return false;
}

// Only the leader receives messages of other hosts, so it rings the other ranks of its host.
void Progress::ring_for_relay(ProcessSetContext& context) {
  bool has_new = context.negotiation.has_ready();
  for (; context.negotiation.has_bucket(context.buckets_told); ++context.buckets_told)
    has_new = true;
  if (!has_new) return;
  for (const int rank : context.local) {
    if (rank != world_.config.rank) world_.presence.ring(rank);
  }
}

void Progress::check_stalls() {
  if (!results_.is_over()) stalls_.check(now_ns());
}

bool Progress::release_role() {
  return role_.release([this] {
    const bool must_watch = has_device_work_.load() && !is_device_watched_.load();
    // Other hosts cannot ring. So a thread must listen to them while operations are under way.
    return sets_.has_ready() || results_.is_unattended() || must_watch ||
           (world_.spans_hosts() && sets_.has_active());
  });
}

// This rank takes part in no operation any more. The ranks that wait for it must know.
void Progress::give_up(const Error& error) {
  tracer_.recorder().record_now(
      {.kind = EventKind::kFailed, .value = static_cast<std::uint64_t>(error.code())});
  fail_everything(error);
  tracer_.want_file("error", error.what(), world_.config.rank);
  membership_.leave(Liveness::kFailed);
  sets_.abort_devices();
  sets_.disconnect();
}

void Progress::fail_everything(const Error& error) {
  const std::lock_guard guard(lock_.mutex);
  results_.end(error);
  sets_.for_each([&](ProcessSetContext& context) { buckets_.fail(context, error); });
  lock_.changed.notify_all();
}

}  // namespace hvd
