#include "runtime/results.h"

#include <utility>

namespace hvd {

HandleId Results::open(std::size_t operations, HandleTable::Continuation then) {
  const bool is_continued = static_cast<bool>(then);
  const HandleId handle = handles_.open(operations, std::move(then));
  if (is_continued) note_continued();
  return handle;
}

void Results::complete(HandleId handle, std::size_t position, const std::optional<Error>& error,
                       std::vector<Output> outputs) {
  if (!handles_.complete(handle, position, error, std::move(outputs))) return;
  lock_.changed.notify_all();
  if (handles_.has_due()) note_continued();
}

void Results::note_continued() {
  if (handles_.has_due()) has_due_.store(true);
  is_unattended_.store(always_unattended_ || handles_.continued_count() != 0);
}

void Results::end(const Error& error) {
  error_ = error;
  is_over_.store(true);
}

bool Results::contains(HandleId handle) {
  const std::lock_guard guard(lock_.mutex);
  return handles_.contains(handle);
}

Pending Results::pending(HandleId handle) {
  const std::lock_guard guard(lock_.mutex);
  return handles_.pending(handle);
}

HandleTable::Result Results::take(HandleId handle) {
  const std::lock_guard guard(lock_.mutex);
  return handles_.close(handle);
}

void Results::continue_with(HandleId handle, HandleTable::Continuation then) {
  const std::lock_guard guard(lock_.mutex);
  handles_.continue_with(handle, std::move(then));
  note_continued();
}

bool Results::deliver() {
  if (!has_due_.load()) return false;
  std::vector<HandleTable::Due> due;
  {
    const std::lock_guard guard(lock_.mutex);
    due = handles_.take_due();
    has_due_.store(false);
  }
  for (auto& [then, result] : due) then(std::move(result));
  return !due.empty();
}

void Results::throw_if_over() {
  const std::lock_guard guard(lock_.mutex);
  if (error_) throw *error_;
}

}  // namespace hvd
