// What has become of submitted operations: the handles, the continuations that are due, and the
// error that ended the world.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "runtime/engine_lock.h"
#include "runtime/handle_table.h"

namespace hvd {

class Results {
 public:
  // `always_unattended`: threads that wait never make progress, the background thread does all.
  Results(EngineLock& lock, int generation, bool always_unattended)
      : lock_(lock), handles_(generation), always_unattended_(always_unattended) {
    note_continued();
  }

  // Under the engine's mutex.
  HandleId open(std::size_t operations, HandleTable::Continuation then = {});
  void add_dependency(HandleId handle, const StreamDependencyPtr& dependency) {
    handles_.add_dependency(handle, dependency);
  }
  // An operation is done: see HandleTable::complete().
  void complete(HandleId handle, std::size_t position, const std::optional<Error>& error,
                std::vector<Output> outputs);
  // The world is over: operations that were begun are never touched again.
  void end(const Error& error);
  const std::optional<Error>& error() const { return error_; }

  // Takes the mutex.
  bool contains(HandleId handle);
  Pending pending(HandleId handle);
  HandleTable::Result take(HandleId handle);
  void continue_with(HandleId handle, HandleTable::Continuation then);
  // Calls the continuations that are due, outside of the progress role. False for none.
  bool deliver();
  void throw_if_over();

  bool has_due() const { return has_due_.load(); }
  // Are operations under way that no thread will wait for?
  bool is_unattended() const { return is_unattended_.load(); }
  bool is_always_unattended() const { return always_unattended_; }
  bool is_over() const { return is_over_.load(); }

 private:
  void note_continued();

  EngineLock& lock_;
  HandleTable handles_;
  std::optional<Error> error_;
  const bool always_unattended_;
  std::atomic<bool> has_due_{false};
  std::atomic<bool> is_unattended_{false};
  std::atomic<bool> is_over_{false};
};

}  // namespace hvd
