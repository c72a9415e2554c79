#include "control/awaited_names.h"

#include "core/clock.h"

namespace hvd {

namespace {

// A thread that asks again does so much sooner, even on a loaded machine.
constexpr Nanoseconds kAttention = std::chrono::milliseconds(200);

}  // namespace

// No more names than can wait in a table.
bool AwaitedNames::ask(const NameKey& key) {
  const std::lock_guard guard(mutex_);
  const auto found = names_.find(key);
  if (found != names_.end()) return found->second == State::kAwaited;
  if (names_.size() >= kMaxSlots) return false;
  names_.emplace(key, State::kNew);
  has_questions_.store(true);
  return false;
}

bool AwaitedNames::listen() {
  const std::int64_t now = now_ns();
  return listens_until_ns_.exchange(now + kAttention.count()) < now || has_questions();
}

bool AwaitedNames::is_listening() const {
  const std::int64_t until_ns = listens_until_ns_.load();
  return until_ns != 0 && now_ns() < until_ns;
}

std::vector<NameKey> AwaitedNames::take_questions() {
  std::vector<NameKey> questions;
  const std::lock_guard guard(mutex_);
  for (auto& [key, state] : names_) {
    if (state != State::kNew) continue;
    state = State::kAsked;
    questions.push_back(key);
  }
  has_questions_.store(false);
  return questions;
}

void AwaitedNames::keep_answer(const NameKey& key) {
  const std::lock_guard guard(mutex_);
  if (const auto found = names_.find(key); found != names_.end()) found->second = State::kAwaited;
}

void AwaitedNames::forget() {
  const std::lock_guard guard(mutex_);
  names_.clear();
  has_questions_.store(false);
}

}  // namespace hvd
