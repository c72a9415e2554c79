// Threads that take no signals. Signals go to the program's own threads: Ctrl-C must reach Python.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace hvd {

// While it lives, this thread takes no signals, and threads that it starts never do.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// Throws Error if there can be no more threads.
template <typename Run>
std::thread quiet_thread(Run run) {
  const BlockedSignals blocked;
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kInternal,
                std::string("a thread cannot be started: ") + error.code().message() +
                    "; is there a limit of processes (ulimit -u, or a container's)?");
  }
}

// Starts a thread that no other thread joins. Throws std::system_error if there can be no more.
// std::thread::detach() would read the memory of a thread that has ended already, which glibc may
// have unmapped (its bug 19951). A thread that starts detached is not touched again.
template <typename Run>
void start_detached(Run run) {
  auto owned = std::make_unique<Run>(std::move(run));
  const auto enter = [](void* given) -> void* {
    const std::unique_ptr<Run> own(static_cast<Run*>(given));
    (*own)();
    return nullptr;
  };
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  const BlockedSignals blocked;
  pthread_t thread;
  const int error = pthread_create(&thread, &detached, enter, owned.get());
  pthread_attr_destroy(&detached);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_create");
  static_cast<void>(owned.release());  // the thread has it
}

}  // namespace hvd
