#include "collective/barrier.h"

#include <string>

#include "core/error.h"

namespace hvd {

namespace {

constexpr std::byte kWord{1};

}  // namespace

std::uint32_t Barrier::begin(BlockNumber block) {
  block_ = block;
  has_arrived_ = false;
  return 1;
}

bool Barrier::advance(PeerWait& blocked) {
  if (!has_arrived_) {
    has_arrived_ = true;
    peers_.publish(Counter::kStaged, block_ + 1);
    peers_.publish(Counter::kReduced, block_ + 1);
  }
  if (!peers_.all_reached(Counter::kStaged, block_ + 1, blocked)) return false;
  peers_.publish(Counter::kFinished, block_ + 1);
  return true;
}

std::uint32_t ClusterBarrier::begin(BlockNumber first_block) {
  heard_.resize(map_.hosts.size());
  start(first_block, 2);
  return 2;
}

// The links carry nothing else meanwhile. So when they are idle, all hosts have sent their byte.
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
