#include "collective/cluster_barrier.h"

#include <string>

#include "core/bad_message.h"

namespace hvd {

namespace {

constexpr std::byte kWord{1};

}  // namespace

std::uint32_t ClusterBarrier::begin(BlockNumber first_block) {
  heard_.resize(map_.hosts.size());
  start(first_block, 2);
  return 2;
}

// The links carry nothing else meanwhile, so when they are idle, all hosts have been heard.
bool ClusterBarrier::make_ready(std::uint32_t block) {
  if (block == kArrive || !is_first()) return true;
  if (!has_used(kArrive) || !links_.is_idle()) return false;
  check_heard();
  return true;
}

void ClusterBarrier::check_heard() const {
  map_.for_each_other([&](int host) {
    const auto found = std::to_integer<int>(heard_[host]);
    if (heard_[host] == kWord) return;
    throw BadMessage({"barrier", "word", std::to_string(found), "1"}, links_.at(host, 0).peer());
  });
}

void ClusterBarrier::use(std::uint32_t block) {
  if (block != kArrive || !is_first()) return;
  map_.for_each_other([&](int host) {
    Link& link = links_.at(host, 0);
    link.send(&kWord, 1);
    link.receive(&heard_[host], 1);
  });
}

}  // namespace hvd
