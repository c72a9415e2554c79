// News of ranks between hosts: each leader of the world tells all other leaders, so that every rank
// learns of a death or an alarm on another host, also while nothing is under way.
//
// The watcher reads these connections. A host whose connection ends without notice is lost. TCP
// keepalive and TCP_USER_TIMEOUT notice a network that is gone, and wake no thread. A data or
// control connection that breaks is an error only when something needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/alarms.h"
#include "runtime/connections.h"
#include "transport/message_link.h"
#include "transport/presence.h"

namespace hvd {

// What one leader tells another about tracing.
enum class NoteKind : std::uint32_t {
  kNone = 0,
  kQuestion = 1,    // what is this rank of yours doing?
  kAnswer = 2,      // its text
  kBeginTrace = 3,  // send what your ranks record
  kEndTrace = 4,    // no more of it
  kTrace = 5,       // a TraceChunk; an empty one is the last
};

// A rank is no longer running, or an alarm was raised; or a note.
struct NewsItem {
  Liveness liveness = Liveness::kRunning;  // kRunning: an alarm
  Alarm alarm;                             // its rank is the one that the item is about
  NoteKind note = NoteKind::kNone;         // its text is that of `alarm`
};

// What an item is checked against: world ranks, by host.
struct NewsScope {
  int size = 1;
  std::vector<int> sender;  // of the host whose leader sent it
  std::vector<int> own;     // of this host
};

std::vector<std::byte> write_news(const NewsItem& item);
// Throws BadMessage: a leader speaks for the ranks of its host, asks about those of this one, and
// only rank 0 wants traces.
NewsItem read_news(std::span<const std::byte> message, const NewsScope& scope);

class News {
 public:
  // `hosts`: world ranks of each, the leader first; `rank` is this one.
  News(const std::vector<LeaderLink>& links, const std::vector<std::vector<int>>& hosts, int rank);

  // Any thread; each rank's departure, and the first alarm, once.
  void tell_departure(int rank, Liveness liveness);
  void tell_alarm(const Alarm& alarm);

  // To one leader. False where that is not possible now, since much is still on its way.
  bool send_note(int leader, NoteKind kind, int rank, const std::string& text);

  void close_copies();  // in a forked child

  // For one thread, which watches the links.
  std::vector<int> descriptors() const;
  // Reads link `index`. False when it broke: then `loss` says why. Throws BadMessage, after which
  // the link is of no use.
  bool hear(std::size_t index, const std::function<void(const NewsItem&)>& use, std::string& loss);
  int leader(std::size_t index) const { return links_[index].rank(); }

 private:
  void tell(const NewsItem& item);

  std::mutex mutex_;
  std::vector<MessageLink> links_;
  std::vector<NewsScope> scopes_;  // by link
  std::set<int> told_;
  bool has_told_alarm_ = false;
};

}  // namespace hvd
