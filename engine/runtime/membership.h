// Knows which ranks of the world are still there, from ended processes on this host, alarms, news
// of other hosts, and departures. It decides when a lost rank ends the world here.
//
// A rank that shuts down after its own part of a bucket does not end that bucket for the others,
// and process sets without it go on. A rank that fails because of one set takes part in no other
// set. It tells the others, so that no rank waits for it there.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/common_parts.h"
#include "runtime/connections.h"
#include "runtime/news.h"
#include "runtime/tracer.h"
#include "runtime/watcher.h"

namespace hvd {

class Membership : private CommonParts {
 public:
  Membership(const CommonParts& common, Tracer& tracer);

  // Starts the watcher's thread. `news`: of a leader, where the world spans hosts.
  void watch(std::vector<WatchedProcess> processes, const std::vector<LeaderLink>& news);
  void stop_watching() { watcher_.reset(); }
  void abandon();  // in a child after fork

  // Any thread.
  void end_world(const std::string& reason);
  // This rank takes part in no operation any more.
  void leave(Liveness liveness);
  // Tells other hosts which ranks of this host have ended, and why the world ends.
  void tell_other_hosts();
  // Whether ranks have left the world.
  bool has_departures() const { return has_departures_.load(); }

  // In the progress role.
  bool has_new_alarm() const { return world_.alarms.count() != alarms_seen_; }
  // Why the world is over, if it is: an alarm, or a rank that is gone and needed.
  std::optional<Error> find_end();
  // A connection that is needed is broken.
  [[noreturn]] void lose(const ProcessSetContext& context, const LinkLost& lost);
  // Returns what `call` returns; throws the error of a lost connection or a bad message.
  auto guard(const ProcessSetContext& context, auto&& call) {
    try {
      return call();
    } catch (const LinkLost& lost) {
      lose(context, lost);
    } catch (const BadMessage& bad) {
      throw failures_.raise(bad, context.world_rank(bad.rank()));
    }
  }

 private:
  // The watcher's thread.
  void on_peer_death(int rank);
  bool on_news(std::size_t index);
  void hear(int leader, const NewsItem& item);
  void lose_host(int leader, const std::string& reason);

  void connect_tracer();
  bool speaks_for_host() const;
  bool may_still_answer(int departed);
  bool is_needed(int departed) const;
  bool is_needed_by(const ProcessSetContext& context, int departed) const;
  bool is_needed_by_device(const ProcessSetContext& context, int departed) const;
  std::optional<Error> find_loss();

  Tracer& tracer_;
  std::unique_ptr<News> news_;  // of a leader, where the world spans hosts
  std::atomic<bool> has_departures_{false};
  // Owned by the holder of the progress role.
  std::uint32_t alarms_seen_ = 0;
  std::vector<std::int64_t> departures_ns_;  // when each rank was seen to have left; 0: not yet
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace hvd
