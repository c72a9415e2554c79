// A thread that takes no signals. Signals go to the program's own threads: Ctrl-C must reach
// Python.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace hvd {

template <typename Run>
std::thread quiet_thread(Run run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  try {
    std::thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace hvd
