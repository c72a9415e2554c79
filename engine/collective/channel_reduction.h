// Sums one channel's shares over the hosts: direct exchange.
//
// The owner of the channel on host h receives part h of each chunk's partial sums from all other
// hosts, adds them up in the order of the hosts, and sends the result to all. The links carry the
// same number of bytes as in a ring, in two steps for any number of hosts. The order of a sum
// depends on the hosts only. There is memory for arriving parts of two chunks; more parts wait on
// the links.
//
// On each link the order of parts and results is fixed (collective/cluster_cut.h), so neither needs
// a header. This class keeps that order. What travels, and from which memory, is the matter of the
// derived classes: collective/exact_channel.h and collective/low_bit_channel.h.
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
  virtual ~ChannelReduction() = default;

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

 protected:
  static constexpr std::uint32_t kSlots = 2;   // chunks of which parts may arrive
  static constexpr std::uint32_t kPlaces = 8;  // chunks whose positions are remembered
  static_assert(kPlaces > kChunksAhead + kSlots && kPlaces > SumMemory::kChunks);

  using Ends = std::array<std::uint64_t, kPlaces>;  // positions in the link's stream, by chunk

  // One other host.
  struct Source {
    int host = 0;
    Link* link = nullptr;
    std::uint32_t turn = 0;     // the next to be posted
    std::uint32_t parts = 0;    // chunks of which the parts are posted
    std::uint32_t results = 0;  // chunks of which the results are
    std::uint32_t taken = 0;    // chunks of which the results are in place
    Ends part_ends{};
    Ends result_ends{};
    Ends sent_part_ends{};
    Ends sent_result_ends{};

    bool has(std::uint64_t end) const { return link->receives().moved() >= end; }
    bool has_sent(std::uint64_t end) const { return link->sends().moved() >= end; }
  };

  Range part(std::uint32_t chunk, int host) const { return cut_->part(chunk, channel_, host); }
  // Where the host's partial sums are.
  const std::byte* partial_sum(const Piece& piece);

  const HostMap& map_;
  std::vector<Source> sources_;
  const ViewList* views_ = nullptr;
  const ClusterCut* cut_ = nullptr;
  SumMemory* sums_ = nullptr;

 private:
  virtual void prepare() = 0;
  // Whether the memory that the chunk's parts, or its results, travel from or to is free.
  virtual bool may_send_parts(std::uint32_t /*chunk*/) const { return true; }
  virtual bool may_receive_result(const Source& /*source*/, std::uint32_t /*chunk*/) const {
    return true;
  }
  virtual bool may_reduce(std::uint32_t chunk) const = 0;
  virtual void send_parts(std::uint32_t chunk) = 0;
  virtual void send_results(std::uint32_t chunk) = 0;
  virtual void receive_part(Source& source, std::uint32_t chunk) = 0;
  virtual void receive_result(Source& source, std::uint32_t chunk) = 0;
  virtual void reduce_part(std::uint32_t chunk) = 0;
  // A result has arrived.
  virtual void take_result(Source& /*source*/, std::uint32_t /*chunk*/) {}

  std::uint32_t turns() const { return cut_->one_step ? cut_->chunks : 2 * cut_->chunks; }
  bool post_sends();
  void post_parts(std::uint32_t chunk);
  void post_results(std::uint32_t chunk);
  bool post_receives(Source& source);
  bool may_reduce_next() const;
  bool take_results(Source& source);

  const int channel_;
  const bool is_alone_;             // no other rank on this host
  std::uint32_t given_ = 0;         // chunks whose partial sums are in place
  std::uint32_t part_sends_ = 0;    // chunks whose parts are posted
  std::uint32_t reduced_ = 0;       // chunks whose own part has its result
  std::uint32_t send_turn_ = 0;     // the next to be posted
  std::uint32_t result_sends_ = 0;  // chunks whose results are posted
};

}  // namespace hvd
