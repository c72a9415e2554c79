// News of ranks between hosts. Each leader of the world sends news to all other leaders. So every
// rank learns of a death or an alarm on another host, also while no operation is under way.
//
// The watcher reads these connections. If a connection ends without news, the host is lost. TCP
// keepalive and TCP_USER_TIMEOUT detect a failed network without waking a thread. A broken data or
// control connection is an error only when an operation needs it.
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

// Messages between leaders about tracing.
enum class NoteKind : std::uint32_t {
  kNone = 0,
  kQuestion = 1,    // asks what a rank of the other host is doing
  kAnswer = 2,      // the text about that rank
  kBeginTrace = 3,  // asks for the events of the other host's ranks
  kEndTrace = 4,    // asks to send no more of them
  kTrace = 5,       // a TraceChunk; an empty one is the last
};

// A rank is no longer running, or an alarm was raised; or a note.
struct NewsItem {
  Liveness liveness = Liveness::kRunning;  // kRunning: an alarm
  Alarm alarm;                             // its rank is the subject of the item
  NoteKind note = NoteKind::kNone;         // its text is that of `alarm`
};

// What an item is checked against: world ranks, by host.
struct NewsScope {
  int size = 1;
  std::vector<int> sender;  // of the sender's host
  std::vector<int> own;     // of this host
};

std::vector<std::byte> write_news(const NewsItem& item);
// Throws BadMessage. A leader may report only ranks of its own host, and ask only about ranks of
// this host. Only rank 0 may ask for traces.
NewsItem read_news(std::span<const std::byte> message, const NewsScope& scope);

class News {
 public:
  // `hosts`: world ranks of each, the leader first; `rank` is this one.
  News(const std::vector<LeaderLink>& links, const std::vector<std::vector<int>>& hosts, int rank);

  // Any thread. Sends each rank's departure once, and only the first alarm.
  void tell_departure(int rank, Liveness liveness);
  void tell_alarm(const Alarm& alarm);

  // Sends a note to one leader. False if that is impossible now, since too much is unsent.
  bool send_note(int leader, NoteKind kind, int rank, const std::string& text);

  void close_copies();  // in a forked child

  // For the one thread that watches the links.
  std::vector<int> descriptors() const;
  // Reads link `index`. False when it broke; then `loss` has the reason. Throws BadMessage; then
  // the link must not be used again.
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
