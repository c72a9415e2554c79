#include "runtime/handle_table.h"

#include <algorithm>
#include <utility>

namespace hvd {

HandleId HandleTable::open(std::size_t operations, Continuation then) {
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
  if (then) continue_with(id, std::move(then));
  return id;
}

void HandleTable::add_dependency(HandleId id, const StreamDependencyPtr& dependency) {
  std::vector<StreamDependencyPtr>& all = at(id).result.dependencies;
  if (all.empty() || all.back() != dependency) all.push_back(dependency);
}

bool HandleTable::complete(HandleId id, std::size_t position, const std::optional<Error>& error,
                           std::vector<Output> outputs) {
  Handle& handle = at(id);
  std::vector<Output>& all = handle.result.outputs;
  if (error && !handle.result.error) handle.result.error = error;
  if (!outputs.empty()) {
    all.resize(std::max(all.size(), position + outputs.size()));
    std::ranges::move(outputs, all.begin() + static_cast<std::ptrdiff_t>(position));
  }
  if (--handle.remaining != 0) return false;
  handle.pending_id.store(0, std::memory_order_release);
  if (handle.then) make_due(handle);
  return true;
}

void HandleTable::continue_with(HandleId id, Continuation then) {
  Handle& handle = at(id);
  handle.then = std::move(then);
  ++continued_count_;
  if (handle.pending_id.load(std::memory_order_relaxed) != id) make_due(handle);
}

void HandleTable::make_due(Handle& handle) {
  Continuation then = std::exchange(handle.then, nullptr);
  due_.emplace_back(std::move(then), close(handle.id));
  --continued_count_;
}

bool HandleTable::contains(HandleId id) const {
  const auto index = static_cast<std::size_t>(id & kIndexMask);
  return id > 0 && index < handles_.size() && handles_[index].id == id;
}

HandleTable::Result HandleTable::close(HandleId id) {
  Handle& handle = at(id);
  handle.id = 0;
  free_.push_back(id & kIndexMask);
  return std::exchange(handle.result, Result{});
}

}  // namespace hvd
