// The lock of an engine's tables: see "Locks" in engine.h.
#pragma once

#include <condition_variable>
#include <mutex>

namespace hvd {

struct EngineLock {
  std::mutex mutex;
  std::condition_variable changed;  // a handle is done, or the progress role is free
};

}  // namespace hvd
