// The connections of one rank to other hosts, by host and channel.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/host_map.h"
#include "transport/link.h"

namespace hvd {

class Links {
 public:
  // Owns the descriptors of `links`: one for every other host and every channel of this rank.
  Links(const HostMap& map, const std::vector<DataLink>& links);

  Link& at(int host, int channel) const { return *links_[host * channels_ + channel]; }

  // Moves posted bytes; true when any moved. Throws LinkLost.
  bool pump();
  // Whether all posted bytes have moved.
  bool is_idle() const;
  // The set rank at the other end of a link with bytes to move; preferably a rank that should send.
  int awaited() const;
  // Bytes of tensors that were posted to be sent, before any encryption.
  std::uint64_t sent_bytes() const;
  void add_polls(std::vector<pollfd>& polls) const;
  void close_copies();

 private:
  const int channels_;
  std::vector<std::unique_ptr<Link>> links_;  // by host, by channel; null: none
  std::vector<Link*> all_;
};

}  // namespace hvd
