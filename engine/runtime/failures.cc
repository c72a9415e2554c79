#include "runtime/failures.h"

#include <set>

#include "core/text.h"

namespace hvd {

namespace {
constexpr const char* kOver = "; no further operation can complete";
}  // namespace

std::string Failures::loss_text(int rank) const {
  const Liveness liveness = world_.presence.liveness(rank);
  const char* what = liveness == Liveness::kDead     ? " died"
                     : liveness == Liveness::kFailed ? " has given up"
                                                     : " has shut down";
  return world_.peer_name(rank) + what + kOver;
}

Error Failures::error_of(const Alarm& alarm) const {
  const std::vector<std::string>& peer_hosts = world_.config.peer_hosts;
  std::set<std::string> hosts;
  for (const int rank : alarm.ranks) {
    const auto index = static_cast<std::size_t>(rank);
    hosts.insert(index < peer_hosts.size() ? peer_hosts[index] : "");
  }
  return Error(alarm.code, alarm.text,
               {.ranks = alarm.ranks,
                .host = hosts.size() == 1 ? *hosts.begin() : "",
                .operation = alarm.operation});
}

Error Failures::loss_of(int rank) const {
  Alarm alarm{.code = ErrorCode::kPeerLost, .rank = rank, .text = loss_text(rank)};
  if (world_.presence.liveness(rank) == Liveness::kDead) alarm.ranks = {rank};
  return error_of(alarm);
}

Error Failures::cause() const {
  if (const auto alarm = world_.alarms.first()) return error_of(*alarm);
  for (int rank = 0; rank < world_.config.size; ++rank) {  // its alarm is still being written
    if (world_.presence.liveness(rank) == Liveness::kDead) return loss_of(rank);
  }
  if (const auto rank = world_.alarms.first_departure()) return loss_of(*rank);
  return Error(ErrorCode::kPeerLost, std::string("another rank has ended") + kOver);
}

Error Failures::raise(const Alarm& alarm) const {
  world_.alarms.raise(alarm);
  return error_of(alarm);
}

Error Failures::raise(const BadMessage& bad, int rank) const {
  const std::string sender = rank < 0 ? "another rank" : world_.peer_name(rank);
  Alarm alarm{.code = bad.code(),
              .rank = rank < 0 ? world_.config.rank : rank,
              .text = bad.text_from(sender) + kOver};
  if (rank >= 0) alarm.ranks = {rank};
  return raise(alarm);
}

Error Failures::raise_link_loss(int rank, const std::string& reason) const {
  return raise({.code = ErrorCode::kPeerLost,
                .rank = rank,
                .text = "lost the connection to " + world_.peer_name(rank) + ": " + reason + kOver,
                .ranks = {rank}});
}

void Failures::check_holder(int holder, Nanoseconds waited) const {
  if (world_.presence.liveness(holder) == Liveness::kDead) throw cause();
  const EngineConfig& config = world_.config;
  const double waited_s = static_cast<double>(waited.count()) / 1e9;
  if (!config.stall_check || config.stall_shutdown_time_s <= 0) return;
  if (waited_s < config.stall_shutdown_time_s) return;
  throw error_of({.code = ErrorCode::kTimeout,
                  .rank = holder,
                  .text = world_.peer_name(holder) + " has not moved for " +
                          seconds_text(waited_s) + " while it held the negotiation table",
                  .ranks = {holder}});
}

}  // namespace hvd
