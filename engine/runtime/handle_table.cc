#include "runtime/handle_table.h"

#include <algorithm>
#include <utility>

namespace hvd {

HandleId HandleTable::open(std::size_t operations, Continuation then, bool is_unattended) {
  if (free_.empty()) {
    if (handles_.size() > static_cast<std::size_t>(kIndexMask)) {
      throw Error(ErrorCode::kInvalidArgument, "too many handles are open; synchronize some first");
    }
    free_.push_back(static_cast<HandleId>(handles_.size()));
    handles_.emplace_back();
  }
  const HandleId id = (++serial_ << kIndexBits) | free_.back();
  free_.pop_back();
  Handle& handle = at(id);
  handle.id = id;
  handle.remaining = operations;
  handle.result.error.reset();
  handle.result.outputs.clear();
  handle.result.dependencies.clear();
  handle.pending_id.store(operations == 0 ? 0 : id, std::memory_order_release);
  handle.is_unattended = is_unattended && operations != 0;
  if (handle.is_unattended) count_unattended(1);
  if (then) set_continuation(handle, std::move(then));
  return id;
}

void HandleTable::add_dependency(HandleId id, const StreamDependencyPtr& dependency) {
  std::vector<StreamDependencyPtr>& all = at(id).result.dependencies;
  if (all.empty() || all.back() != dependency) all.push_back(dependency);
}

void HandleTable::complete(HandleId id, std::size_t position, const std::optional<Error>& error,
                           std::vector<Output> outputs) {
  Handle& handle = at(id);
  std::vector<Output>& all = handle.result.outputs;
  if (error && !handle.result.error) handle.result.error = error;
  if (!outputs.empty()) {
    all.resize(std::max(all.size(), position + outputs.size()));
    std::ranges::move(outputs, all.begin() + static_cast<std::ptrdiff_t>(position));
  }
  if (--handle.remaining != 0) return;
  handle.pending_id.store(0, std::memory_order_release);
  if (std::exchange(handle.is_unattended, false)) count_unattended(-1);
  if (handle.then) make_due(handle);
  lock_.changed.notify_all();
}

void HandleTable::set_continuation(Handle& handle, Continuation then) {
  handle.then = std::move(then);
  count_unattended(1);
  if (handle.pending_id.load(std::memory_order_relaxed) != handle.id) make_due(handle);
}

void HandleTable::make_due(Handle& handle) {
  Continuation then = std::exchange(handle.then, nullptr);
  due_.emplace_back(std::move(then), close(handle));
  has_due_.store(true);
  count_unattended(-1);
}

HandleTable::Result HandleTable::close(Handle& handle) {
  free_.push_back(std::exchange(handle.id, 0) & kIndexMask);
  return std::exchange(handle.result, Result{});
}

void HandleTable::count_unattended(int change) {
  unattended_count_ += change;
  is_unattended_.store(always_unattended_ || unattended_count_ != 0);
}

void HandleTable::end(const Error& error) {
  error_ = error;
  is_over_.store(true);
}

bool HandleTable::contains(HandleId id) {
  const std::lock_guard guard(lock_.mutex);
  const auto index = static_cast<std::size_t>(id & kIndexMask);
  return id > 0 && index < handles_.size() && handles_[index].id == id;
}

Pending HandleTable::pending(HandleId id) {
  const std::lock_guard guard(lock_.mutex);
  return Pending(at(id).pending_id, id);
}

HandleTable::Result HandleTable::take(HandleId id) {
  const std::lock_guard guard(lock_.mutex);
  return close(at(id));
}

void HandleTable::continue_with(HandleId id, Continuation then) {
  const std::lock_guard guard(lock_.mutex);
  set_continuation(at(id), std::move(then));
}

bool HandleTable::deliver() {
  if (!has_due_.load()) return false;
  std::vector<std::pair<Continuation, Result>> due;
  {
    const std::lock_guard guard(lock_.mutex);
    due.swap(due_);
    has_due_.store(false);
  }
  for (auto& [then, result] : due) then(std::move(result));
  return !due.empty();
}

void HandleTable::throw_if_over() {
  const std::lock_guard guard(lock_.mutex);
  if (error_) throw *error_;
}

}  // namespace hvd
