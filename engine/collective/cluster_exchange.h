// Bytes that ranks give to ranks, over several hosts: broadcast, allgather, alltoall.
//
// Bytes are sent on a link directly from tensors. Bytes that arrive are for this rank, or for other
// ranks of the host (or further hosts), or both. Inside a host every rank has a stream, as in
// collective/exchange.h: its own bytes and the bytes that it passes on. A block is staged when its
// bytes have arrived. Bytes that are not for this rank arrive in the staging cell, all others in
// the tensors.
//
// The caller describes one run by calls of send() ... keep() between clear() and begin(), in the
// order of each stream. Both ends of a link must have the same order.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

// Bytes that come over a link, from `begin` of its stream on.
struct Arrival {
  Link* link = nullptr;  // null: the bytes are here already
  std::uint64_t begin = 0;
  bool in_cell = false;  // not posted yet; will arrive in the staging cell

  // How many of the first `size_bytes` have arrived.
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
  // Member `member` of this host gives a view to the others. `in`: if that member is this rank.
  // `out`: if the view is for this rank. `arrival`: used on that member only.
  void share(int member, const View& view, Arrival arrival = {});
  // This rank gives itself a view, which other ranks do not see.
  void keep(const View& view) { kept_.append(view); }

  // Returns how many block numbers it takes. Hosts may take different numbers.
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
    std::vector<View> last;           // `out` of the bytes that follow those
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
