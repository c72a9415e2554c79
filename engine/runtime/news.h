// What happens to ranks travels between hosts: each leader of the world tells all the others, so
// that every rank learns of a death or an alarm on another host, also while nothing is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "control/alarms.h"
#include "runtime/connections.h"
#include "transport/message_link.h"
#include "transport/presence.h"

namespace hvd {

// A rank is no longer running, or an alarm was raised.
struct NewsItem {
  Liveness liveness = Liveness::kRunning;  // kRunning: an alarm
  Alarm alarm;                             // its rank is the one that it is about in any case
};

class News {
 public:
  // `leaders`: world rank of each host's.
  News(const std::vector<LeaderLink>& links, const std::vector<int>& leaders);

  // Any thread; each rank's departure, and the first alarm, once.
  void tell_departure(int rank, Liveness liveness);
  void tell_alarm(const Alarm& alarm);

  void close_copies();  // in a forked child

  // For one thread, which watches the links.
  std::vector<int> descriptors() const;
  // Reads link `index`. False when it broke: then `loss` says why.
  bool hear(std::size_t index, const std::function<void(const NewsItem&)>& use, std::string& loss);
  int leader(std::size_t index) const { return links_[index].rank(); }

 private:
  void tell(const NewsItem& item);

  std::mutex mutex_;
  std::vector<MessageLink> links_;
  std::set<int> told_;
  bool has_told_alarm_ = false;
};

}  // namespace hvd
