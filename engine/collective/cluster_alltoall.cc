#include "collective/cluster_alltoall.h"

namespace hvd {

namespace {

class Describer {
 public:
  Describer(const HostMap& map, Links& links, OwnPlace own, ClusterExchange& exchange)
      : map_(map), links_(links), own_(own), exchange_(exchange) {}

  void describe_passed_on(const PairwiseParts& parts) {
    map_.for_each_other([&](int host) {
      for (int step = 1; step < map_.members(host); ++step) send(parts, host, step);
    });
    parts.for_each_piece(own_.rank, own_.rank, [&](const View& view) { exchange_.keep(view); });
    for (int member = 0; member < map_.own_members(); ++member) {
      share(parts, member, map_.hosts[map_.own][member], {});
      for_each_giver(map_, member, [&](int host, int channel, int giver) {
        Link* const link = member == own_.member ? &links_.at(host, channel) : nullptr;
        share(parts, member, giver, {.link = link, .begin = 0, .in_cell = link != nullptr});
      });
    }
  }

  void describe_direct(const PairwiseParts& parts) {
    map_.for_each_other([&](int host) { send(parts, host, 0); });
    for_each_giver(map_, own_.member, [&](int host, int channel, int giver) {
      Link& link = links_.at(host, channel);
      parts.for_each_piece(giver, own_.rank, [&](const View& view) {
        exchange_.receive_last(link, view.out, view.size_bytes);
      });
    });
  }

 private:
  // To the taker `step` places behind the owner of this rank's channel on `host`.
  void send(const PairwiseParts& parts, int host, int step) {
    Link& link = links_.at(host, own_.member);
    const int at = map_.owner_index(own_.member, host) + step;
    parts.for_each_piece(own_.rank, map_.hosts[host][at % map_.members(host)],
                         [&](const View& view) { exchange_.send(link, view.in, view.size_bytes); });
  }

  // Describes the data from `giver` to the ranks of this host other than `member`, which stages it.
  void share(const PairwiseParts& parts, int member, int giver, const Arrival& arrival) {
    for (int step = 1; step < map_.own_members(); ++step) {
      const int taker = map_.hosts[map_.own][(member + step) % map_.own_members()];
      parts.for_each_piece(giver, taker,
                           [&](const View& view) { exchange_.share(member, view, arrival); });
    }
  }

  const HostMap& map_;
  Links& links_;
  const OwnPlace own_;
  ClusterExchange& exchange_;
};

}  // namespace

void describe_alltoall(const HostMap& map, Links& links, OwnPlace own,
                       std::span<const PairwiseParts* const> bucket, ClusterExchange& exchange) {
  Describer describer(map, links, own, exchange);
  for (const PairwiseParts* parts : bucket) describer.describe_passed_on(*parts);
  for (const PairwiseParts* parts : bucket) describer.describe_direct(*parts);
}

}  // namespace hvd
