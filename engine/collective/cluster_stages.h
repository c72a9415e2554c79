// The base of collectives between hosts: stages in the shared memory of each host
// (collective/stage_ahead.h), and streams of bytes on the links between them, worked on in turn.
//
// A stage may need bytes from a link first (make_ready), and using it may give bytes to a link. All
// hosts go through the same number of stages in the same order, with one member too, where stages
// cost nothing.
#pragma once

#include "collective/host_map.h"
#include "collective/links.h"
#include "collective/stage_ahead.h"

namespace hvd {

class ClusterStages : public StageAhead {
 public:
  bool advance(PeerWait& blocked) final;

 protected:
  ClusterStages(Peers& peers, const HostMap& map, Links& links)
      : StageAhead(peers), map_(map), links_(links) {}

  // Posts and computes as much as possible; true when there was anything to do.
  virtual bool exchange() = 0;
  // Whether everything is posted.
  virtual bool has_posted_all() const = 0;

  const HostMap& map_;
  Links& links_;
};

}  // namespace hvd
