// A mutex in shared memory for critical sections of well under a microsecond.
//
// The lock word is 0 (free), 1 (held) or 2 (held, somebody sleeps); Drepper, "Futexes Are Tricky".
// A process that dies inside leaves it held for ever, so waiting goes on only while `alarm` keeps
// its value: when it changes, lock() throws and the world is over anyway.
#pragma once

#include "core/futex.h"

namespace hvd {

class SharedMutex {
 public:
  // Throws Error(kPeerLost) when `alarm` moves away from `calm` before the lock is free.
  void lock(const SharedWord& alarm, std::uint32_t calm);
  void unlock();

 private:
  SharedWord word_;
};

class SharedLock {
 public:
  SharedLock(SharedMutex& mutex, const SharedWord& alarm, std::uint32_t calm) : mutex_(mutex) {
    mutex_.lock(alarm, calm);
  }
  ~SharedLock() { mutex_.unlock(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace hvd
