// One host of a process set as the relay's tests by chance see it: the boards of its ranks, the
// leader's relay, and ranks that submit, join and run buckets as an engine would. It aborts where
// an engine would use what it does not have.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "control/relay.h"
#include "transport/seal.h"
#include "transport/shared_space.h"

namespace hvd::fuzz {

using Hosts = std::vector<std::vector<int>>;

// Four hosts: 0 is the root, 1 and 2 are its children, 3 is the child of 2.
const Hosts& tree_hosts();
inline constexpr int kTreeSize = 8;
inline constexpr int kNames = 11;   // of operations, of all kinds
inline constexpr int kOnGpus = 10;  // the one whose launches are ordered, which host 3 asks for

// Of a connection, with what seals and opens its messages.
struct End {
  int fd = -1;
  std::shared_ptr<LinkSeals> seals;
};
struct Pair {
  End first;
  End second;
};
Pair connected_pair();
// To `rank`; takes over the descriptor.
MessageLink link_at(const End& end, int rank);

class TreeHost {
 public:
  // `parent`: where there is one; `children`: as many as the tree has.
  TreeHost(int host, const std::optional<End>& parent, const std::vector<End>& children);

  // All ranks here that can submit operation `name`.
  void submit(int name);
  // The rank at `index` here takes part in everything from now on.
  void join(std::size_t index);
  // The leader would submit operation `name` once another rank has.
  void ask(int name);
  // Reads, decides if it is the root's, sends. True when anything moved. Throws Error.
  bool pump();
  // All ranks here run the buckets that are decided.
  void run_buckets();
  const Relay& relay() const { return *relay_; }

 private:
  struct Rank {
    int rank = 0;
    std::unique_ptr<NegotiationTable> negotiation;
    std::map<int, SlotRef> refs;  // by name
    std::map<int, bool> is_in_flight;
    bool has_joined = false;
  };

  void arrive(Rank& rank, int name);
  void look_at(Rank& rank, const BucketItem& item);
  void check_rows(const Rank& rank, const BucketItem& item);

  const int host_;
  std::atomic<std::uint64_t> launches_{0};
  std::shared_ptr<Region> region_;
  std::vector<Rank> ranks_;
  std::unique_ptr<Relay> relay_;
  std::uint32_t next_ = 0;
};

}  // namespace hvd::fuzz
