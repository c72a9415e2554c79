// A running collective, as a plan that can be resumed. It never blocks: it returns what it waits
// for.
//
// The thread that holds the progress role calls advance(). The role may pass to another thread
// between two calls.
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
