// A collective in flight: a resumable plan. It never waits; it says what it waits for.
//
// Any thread that holds the progress role may call advance(); the role may pass to another thread
// between two calls. That is how a helping thread can hand a half-done collective back.
#pragma once

#include "transport/peers.h"

namespace hvd {

class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // Runs as far as possible. True when complete, else `blocked` says what must happen first.
  virtual bool advance(PeerWait& blocked) = 0;
};

}  // namespace hvd
