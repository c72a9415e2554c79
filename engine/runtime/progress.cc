// What the holder of the progress role does: run the buckets in the order of the board.
#include <algorithm>
#include <new>
#include <utility>

#include "runtime/engine.h"

namespace hvd {

Engine::Step Engine::step(bool may_form) {
  // An aborted bucket is still the next one on the board, but its tensors may be gone.
  if (is_over_.load()) return Step::kIdle;
  try {
    if (board_.alarm_count() != alarms_seen_) handle_alarm();
    if (has_departures_ && fail_if_lost()) return Step::kIdle;
    return run_or_form(may_form);
  } catch (const Error& error) {
    fail_everything(error);
  } catch (const std::bad_alloc&) {
    board_.raise_alarm({.code = ErrorCode::kSystem,
                        .rank = config_.rank,
                        .text = peer_name(config_.rank) + " has no memory left for a result"});
    wake_everyone();
  }
  return Step::kIdle;
}

Engine::Step Engine::run_or_form(bool may_form) {
  if (bucket_running_) {
    PeerWait blocked;
    if (!backend_.advance(blocked)) {
      note_blocked(blocked);
      return Step::kBlocked;
    }
    end_bucket();
    return Step::kProgressed;
  }
  if (!board_.has_bucket(cursor_)) {
    if (!may_form || !board_.has_ready()) return Step::kIdle;
    const SharedLock lock = board_.lock();
    if (!board_.has_bucket(cursor_) && !board_.form_bucket()) return Step::kIdle;
  }
  begin_bucket();
  return Step::kProgressed;
}

void Engine::begin_bucket() {
  board_.bucket_items(cursor_, items_);
  entries_.clear();
  works_.resize(std::max(works_.size(), items_.size()));
  const std::int64_t now = now_ns();
  recorder_.record(now, EventKind::kBucketStart, cursor_, items_.size());
  {
    const std::lock_guard guard(mutex_);
    for (const BucketItem& item : items_) resolve(item, now);
  }
  blocked_on_ = {};
  bucket_running_ = true;
  const Kind kind = entries_.empty() ? Kind::kBarrier : entries_.front()->request.kind;
  backend_.begin(kind, std::span(works_).first(entries_.size()));
}

void Engine::resolve(const BucketItem& item, std::int64_t now) {
  Entry& entry = tensors_.by_slot(item.slot);
  recorder_.record(now, EventKind::kFused, item.slot, cursor_);
  if (const auto text = board_.error_of(item)) {
    finish(entry, Error(ErrorCode::kMismatch, entry.title() + ": " + *text), now);
    return;
  }
  Work& work = works_[entries_.size()];
  entries_.push_back(&entry);
  work.request = &entry.request;
  work.in = entry.in;
  work.out = entry.out;
  work.root = entry.request.root;
  if (entry.request.kind != Kind::kAllgather) return;
  work.rows.clear();
  std::int64_t rows = 0;
  for (int rank = 0; rank < config_.size; ++rank) {
    work.rows.push_back(board_.rows_of(item, rank));
    rows += work.rows.back();
  }
  const std::size_t row_bytes = entry.request.row_count() * size_of(entry.request.dtype);
  const std::size_t size_bytes = static_cast<std::size_t>(rows) * row_bytes;
  entry.output.bytes = Output::allocate(size_bytes);
  entry.output.shape.assign(entry.request.shape().begin(), entry.request.shape().end());
  entry.output.shape[0] = rows;
  work.out = entry.output.bytes.get();
}

void Engine::end_bucket() {
  bucket_running_ = false;
  {
    // The board first: a caller that sees its handle done may submit the name again at once.
    const SharedLock lock = board_.lock();
    board_.finish_bucket(cursor_);
  }
  const std::int64_t now = now_ns();
  recorder_.record(now, EventKind::kBucketDone, cursor_, entries_.size());
  ++cursor_;
  const std::lock_guard guard(mutex_);
  for (Entry* entry : entries_) finish(*entry, std::nullopt, now);
}

void Engine::finish(Entry& entry, const std::optional<Error>& error, std::int64_t now) {
  tensors_.land(entry);
  recorder_.record(now, error ? EventKind::kError : EventKind::kDone, entry.ref.slot,
                   error ? static_cast<std::uint64_t>(error->code()) : 0);
  if (handles_.complete(entry.handle, entry.position, error, std::exchange(entry.output, {})) &&
      helpers_waiting_.load() != 0) {
    changed_.notify_all();
  }
}

void Engine::fail_everything(const Error& error) {
  const std::lock_guard guard(mutex_);
  const std::int64_t now = now_ns();
  bucket_running_ = false;
  fatal_ = error;
  is_over_.store(true);
  while (!tensors_.in_flight().empty()) {
    Entry& entry = *tensors_.in_flight().back();
    const std::string text = error.what();
    const std::string title = entry.title();
    finish(entry, Error(error.code(), text.starts_with(title) ? text : title + ": " + text), now);
  }
  changed_.notify_all();
}

}  // namespace hvd
