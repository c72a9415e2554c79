// A mutex in shared memory for critical sections of well under a microsecond.
//
// The lock word is 0 when free, else the holder's rank + 1, with the top bit set when a thread
// sleeps; after Drepper, "Futexes Are Tricky". A process that dies or is stopped while it holds the
// lock does not release it. So a thread that waits long calls `HolderCheck`, which throws when the
// holder is lost.
#pragma once

#include <functional>

#include "core/clock.h"
#include "core/futex.h"

namespace hvd {

// Called now and then while `holder` has kept a waiting thread for `waited`.
using HolderCheck = std::function<void(int holder, Nanoseconds waited)>;

class SharedMutex {
 public:
  void lock(int rank, const HolderCheck& check);
  void unlock();

 private:
  SharedWord word_;
};

class SharedLock {
 public:
  SharedLock(SharedMutex& mutex, int rank, const HolderCheck& check) : mutex_(mutex) {
    mutex_.lock(rank, check);
  }
  ~SharedLock() { mutex_.unlock(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace hvd
