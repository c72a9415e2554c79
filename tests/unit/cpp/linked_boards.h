// Boards of several hosts, linked by socket pairs, used from one thread.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/relay.h"
#include "control/tree.h"
#include "linked_hosts.h"
#include "seals.h"

namespace hvd::test {

// A host's ranks share a board; their leader has the relay.
class Tree {
 public:
  using Clocks = std::vector<std::shared_ptr<std::atomic<std::uint64_t>>>;

  // `clocks`: the numbers of launches, by host; empty: its own.
  explicit Tree(Hosts hosts, std::uint32_t cache_capacity = 1024, Clocks clocks = {})
      : hosts_(std::move(hosts)), clocks_(std::move(clocks)) {
    for (const auto& ranks : hosts_) size_ += static_cast<int>(ranks.size());
    while (clocks_.size() < hosts_.size()) {
      clocks_.push_back(std::make_shared<std::atomic<std::uint64_t>>(0));
    }
    refs_.resize(static_cast<std::size_t>(size_));
    for (int host = 0; host < count(); ++host) open_host(host, cache_capacity);
    for (int host = 0; host < count(); ++host) link(host);
  }

  bool arrive(int rank, const std::string& name, std::vector<Request> requests,
              const std::vector<std::int64_t>& splits = {}) {
    for (Request& request : requests) request.rank = rank;
    NegotiationTable& negotiation = this->negotiation(rank);
    const SharedLock lock = negotiation.lock();
    return negotiation.arrive(key_of(name), requests, splits, signature_of(requests),
                              refs_[static_cast<std::size_t>(rank)][name]);
  }
  void all_arrive(const std::string& name, const Request& request) {
    for (int rank = 0; rank < size_; ++rank) arrive(rank, name, {request});
  }

  // Every leader looks at its links once, all at the same time: what one sends now, another reads
  // in the next step.
  void step() {
    for (auto& relay : relays_) relay->pump();
    NegotiationTable& root = negotiation(hosts_[0][0]);
    const SharedLock lock = root.lock();
    root.form_bucket();
  }
  std::uint32_t next() const { return next_; }

  // Until nothing moves; the root's board cuts what it can.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& relay : relays_) moved |= relay->pump();
      NegotiationTable& root = negotiation(hosts_[0][0]);
      const SharedLock lock = root.lock();
      moved |= root.form_bucket();
    }
  }

  NegotiationTable& negotiation(int rank) { return *negotiations_[static_cast<std::size_t>(rank)]; }
  int size() const { return size_; }
  int count() const { return static_cast<int>(hosts_.size()); }
  Relay& relay(int host) { return *relays_[static_cast<std::size_t>(host)]; }
  std::atomic<std::uint64_t>& clock(int host) { return *clocks_[static_cast<std::size_t>(host)]; }
  std::uint64_t messages_sent() const {
    std::uint64_t sum = 0;
    for (const auto& relay : relays_) sum += relay->messages_sent();
    return sum;
  }

  // The items of the next bucket as each rank sees them, and all finish it.
  template <typename Use>
  void run_bucket(Use&& use) {
    for (int rank = 0; rank < size_; ++rank) {
      REQUIRE(negotiation(rank).has_bucket(next_));
      std::vector<BucketItem> items;
      negotiation(rank).bucket_items(next_, items);
      use(rank, negotiation(rank), items);
    }
    for (int rank = 0; rank < size_; ++rank) {
      const SharedLock lock = negotiation(rank).lock();
      negotiation(rank).finish_bucket(next_);
    }
    ++next_;
  }
  bool has_bucket() { return negotiation(0).has_bucket(next_); }

 private:
  void open_host(int host, std::uint32_t cache_capacity) {
    regions_.push_back(Region::allocate(NegotiationTable::region_bytes(size_)));
    NegotiationConfig config;
    config.size = size_;
    config.cache_capacity = cache_capacity;
    config.local = hosts_[static_cast<std::size_t>(host)];
    config.collected = ranks_below(host);
    config.is_root = host == 0;
    config.launches = clocks_[static_cast<std::size_t>(host)].get();
    if (negotiations_.empty()) negotiations_.resize(static_cast<std::size_t>(size_));
    for (const int rank : config.local) {
      config.rank = rank;
      negotiations_[static_cast<std::size_t>(rank)] =
          std::make_unique<NegotiationTable>(regions_.back()->data(), config);
    }
    up_.emplace_back(-1, nullptr);
    down_.emplace_back();
  }

  std::vector<int> ranks_below(int host) const {
    std::vector<int> ranks;
    for (const int below : tree_below(host, count())) {
      const auto& local = hosts_[static_cast<std::size_t>(below)];
      ranks.insert(ranks.end(), local.begin(), local.end());
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  void link(int host) {
    std::vector<Relay::Child> children;
    for (const int child : tree_children(host, count())) {
      int pair[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
      const auto [down, up] = seals_pair();
      up_[static_cast<std::size_t>(child)] = {pair[1], up};
      children.push_back(
          {MessageLink(pair[0], hosts_[static_cast<std::size_t>(child)][0], down, "control link"),
           ranks_below(child), tree_children(child, count()).empty()});
    }
    std::optional<MessageLink> parent;
    if (host != 0) {
      const auto& [fd, seals] = up_[static_cast<std::size_t>(host)];
      parent.emplace(fd, hosts_[0][0], seals, "control link");
    }
    relays_.push_back(
        std::make_unique<Relay>(negotiation(hosts_[static_cast<std::size_t>(host)][0]),
                                std::move(parent), std::move(children)));
  }

  Hosts hosts_;
  Clocks clocks_;
  int size_ = 0;
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::unique_ptr<NegotiationTable>> negotiations_;
  std::vector<std::map<std::string, SlotRef>> refs_;
  std::vector<std::pair<int, std::shared_ptr<LinkSeals>>> up_;
  std::vector<std::vector<int>> down_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::uint32_t next_ = 0;
};

}  // namespace hvd::test
