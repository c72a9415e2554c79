#include "runtime/progress_role.h"

namespace hvd {

bool ProgressRole::take(bool as_helper) {
  std::unique_lock lock(lock_.mutex);
  if (is_taken_ && as_helper) {
    helpers_.fetch_add(1);
    doorbells_.wake_holder();
    lock_.changed.wait_for(lock, std::chrono::milliseconds(1));
    helpers_.fetch_sub(1);
  }
  if (is_taken_ || is_closed_.load()) return false;
  is_taken_ = true;
  presence_.set_wait_state(WaitState::kAwake);
  return true;
}

void ProgressRole::close() {
  is_closed_.store(true);
  doorbells_.ring_background();
  const std::lock_guard guard(lock_.mutex);
  doorbells_.wake_holder();
}

void ProgressRole::take_for_good(std::unique_lock<std::mutex>& lock) {
  // A helper sees that the role is closed within one slice of its wait.
  lock_.changed.wait(lock, [this] { return !is_taken_; });
  is_taken_ = true;
}

}  // namespace hvd
