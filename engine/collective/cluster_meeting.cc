#include "collective/cluster_meeting.h"

namespace hvd {

namespace {

constexpr std::byte kWord{1};

}  // namespace

std::uint32_t ClusterMeeting::begin(BlockNumber first_block) {
  heard_.resize(map_.hosts.size());
  start(first_block, 2);
  return 2;
}

// The links carry nothing else meanwhile, so when they rest, all have been heard.
bool ClusterMeeting::make_ready(std::uint32_t block) {
  return block == kCome || !is_first() || (has_used(kCome) && links_.is_idle());
}

void ClusterMeeting::use(std::uint32_t block) {
  if (block != kCome || !is_first()) return;
  map_.for_each_other([&](int host) {
    Link& link = links_.at(host, 0);
    link.send(&kWord, 1);
    link.receive(&heard_[host], 1);
  });
}

}  // namespace hvd
