// Bytes that ranks give to ranks, over several hosts: broadcast, allgather, alltoall.
//
// Bytes cross a link straight from tensors. Bytes that arrive are for this rank, or go on to the
// other ranks of the host (and to further hosts), or both. Inside a host every rank has a stream,
// as in collective/exchange.h, of its own bytes and of those that it passes on: a block is staged
// when its bytes have arrived. Bytes that are not for this rank arrive in the staging cell, all
// others in the tensors.
//
// The caller describes one run by calls of send() ... keep() between clear() and begin(), in the
// order of each stream, which both ends of a link must agree on.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "collective/cluster_stages.h"
#include "collective/views.h"

namespace hvd {

// Bytes that come over a link, from `begin` of its stream on.
struct Arrival {
  Link* link = nullptr;  // null: they are here
  std::uint64_t begin = 0;
  bool in_cell = false;  // not posted yet; will arrive in the staging cell

  // Of the first `size_bytes`, how many are here.
  std::size_t arrived(std::size_t size_bytes) const;
};

class ClusterExchange final : public ClusterStages {
 public:
  ClusterExchange(Peers& peers, const HostMap& map, Links& links);

  void clear();
  // Sends bytes that are in memory, or will arrive there. Null: zeros.
  void send(Link& link, const std::byte* from, std::size_t size_bytes, Arrival arrival = {});
  // Receives bytes to memory. Null: they are dropped.
  Arrival receive(Link& link, std::byte* to, std::size_t size_bytes);
  // The same, but after all bytes that arrive in cells on that link.
  void receive_last(Link& link, std::byte* to, std::size_t size_bytes);
  // Member `member` of this host gives a view to the others (`in` where it is this rank, `out`
  // where it is for this rank). `arrival` counts on the giver alone.
  void share(int member, const View& view, Arrival arrival = {});
  // This rank gives itself a view, which other ranks do not see.
  void keep(const View& view) { kept_.append(view); }

  // Returns how many block numbers it takes; hosts may differ.
  std::uint32_t begin(BlockNumber first_block);

 private:
  struct Departure {
    const std::byte* from = nullptr;
    std::size_t size_bytes = 0;
    std::size_t posted_bytes = 0;
    Arrival arrival;
  };
  struct Traffic {
    std::vector<Departure> departures;
    std::size_t departed = 0;         // so many are posted
    std::size_t bytes_for_cells = 0;  // still to be posted
    std::vector<View> last;           // `out` of what comes behind those
  };

  bool make_ready(std::uint32_t block) override;
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;
  bool exchange() override;
  bool has_posted_all() const override;

  void await(std::uint32_t block);
  bool post_departures(Link& link, Traffic& traffic);
  void post_last(Link& link, Traffic& traffic);
  bool copy_kept();
  Range range_of(std::uint32_t block, const ViewList& stream) const;
  const Arrival& arrival_of(const View& view) const;

  std::vector<ViewList> streams_;  // by member
  std::vector<Arrival> arrivals_;  // by view of the own stream
  ViewList kept_;
  std::vector<std::byte> dropped_;
  std::map<Link*, Traffic> traffic_;
  std::size_t block_bytes_ = 0;
  std::size_t kept_bytes_ = 0;  // of kept_, copied
  std::uint32_t awaited_block_ = 0;
  std::vector<std::pair<const Link*, std::uint64_t>> awaited_;  // what awaited_block_ needs
};

}  // namespace hvd
