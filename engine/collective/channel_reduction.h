// Sums one channel's shares over the hosts: direct exchange.
//
// The owner of the channel on host h receives part h of each chunk's partial sums from all other
// hosts, adds them up in the order of the hosts, and sends the result to all. The links carry the
// same number of bytes as in a ring, in two steps for any number of hosts. The order of a sum
// depends on the hosts only. There is memory for arriving parts of two chunks; more parts wait on
// the links.
//
// On each link the order of parts and results is fixed (collective/cluster_cut.h), so neither needs
// a header. A result arrives only after the partial sums in its place have left, so both use the
// same memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/cluster_cut.h"
#include "collective/host_map.h"
#include "collective/links.h"
#include "collective/views.h"

namespace hvd {

// Where partial sums and results of an allreduce are on this rank: in its tensors, or, on an absent
// rank, in spare memory. There a chunk uses the memory of the chunk that is kChunks before it.
class SumMemory {
 public:
  static constexpr std::uint32_t kChunks = kChunksAhead + 1;

  // `views` outlives the run.
  void begin(const ViewList& views, const ClusterCut& cut);

  bool has_spare() const { return has_spare_; }

  std::byte* address(const Piece& piece) {
    return piece.view.out != nullptr ? piece.out() : spare_.data() + piece.stream % spare_.size();
  }

 private:
  bool has_spare_ = false;
  std::vector<std::byte> spare_;
};

class ChannelReduction {
 public:
  ChannelReduction(const HostMap& map, Links& links, int channel);

  int channel() const { return channel_; }

  // All outlive the run.
  void begin(const ViewList& views, const ClusterCut& cut, SumMemory& sums);
  // Call it when this host's partial sums of the next chunk are in place.
  void give_next() { ++given_; }
  // Posts and adds up as much as possible; true when there was anything to do.
  bool exchange();
  // Whether the result of the channel's share of a chunk is in place.
  bool has_result(std::uint32_t chunk) const;
  // Whether all of a chunk that this rank sends has left.
  bool has_left(std::uint32_t chunk) const;
  bool has_posted_all() const;

 private:
  static constexpr std::uint32_t kSlots = 2;   // chunks of which parts may arrive
  static constexpr std::uint32_t kPlaces = 8;  // chunks whose positions are remembered
  static_assert(kPlaces > kChunksAhead + kSlots && kPlaces > SumMemory::kChunks);

  // One other host.
  struct Source {
    int host = 0;
    Link* link = nullptr;
    std::uint32_t turn = 0;                          // the next to be posted
    std::uint32_t parts = 0;                         // chunks of which the parts are posted
    std::uint32_t results = 0;                       // chunks of which the results are
    std::array<std::uint64_t, kPlaces> part_ends{};  // positions in the link's stream, by chunk
    std::array<std::uint64_t, kPlaces> result_ends{};
    std::array<std::uint64_t, kPlaces> sent_ends{};  // of the results sent there
    std::vector<std::byte> slots;

    bool has(std::uint64_t end) const { return link->receives().moved() >= end; }
  };

  std::uint32_t turns() const { return cut_->one_step ? cut_->chunks : 2 * cut_->chunks; }
  bool post_sends();
  bool post_receives(Source& source);
  void post_parts(std::uint32_t chunk);
  void post_results(std::uint32_t chunk);
  bool may_reduce() const;
  void reduce_next();
  std::byte* slot(Source& source, std::uint32_t chunk) const;
  const std::byte* partial_sum(const Piece& piece);

  const HostMap& map_;
  const int channel_;
  const bool is_alone_;  // no other rank on this host
  std::vector<Source> sources_;
  std::vector<const std::byte*> addends_;  // by host
  const ViewList* views_ = nullptr;
  const ClusterCut* cut_ = nullptr;
  SumMemory* sums_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::uint32_t given_ = 0;         // chunks whose partial sums are in place
  std::uint32_t reduced_ = 0;       // chunks whose own part has its result
  std::uint32_t send_turn_ = 0;     // the next to be posted
  std::uint32_t result_sends_ = 0;  // chunks whose results are posted
};

}  // namespace hvd
