// Process sets of an engine: where each lies in the shared space, and their lanes.
//
// A set is a line in a table until one of its members uses it; then that rank opens the set's lane.
// The shared space reserves a part for each possible set, and has memory only for what was touched.
// Removing a set unmaps its lane and gives the memory back. The world is set 0.
#include <algorithm>
#include <utility>

#include "runtime/engine.h"

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

std::size_t Engine::words_bytes(int size) {
  return (Presence::region_bytes(size) + Alarms::region_bytes(size) + kPage - 1) / kPage * kPage;
}

std::size_t Engine::sets_offset(int size) {
  return words_bytes(size) + static_cast<std::size_t>(size) * Recorder::region_bytes();
}

std::size_t Engine::space_bytes(int size) {
  return sets_offset(size) + kMaxProcessSets * ProcessSetContext::region_bytes(size);
}

std::unique_ptr<Tracer> Engine::make_tracer(const std::vector<WatchedProcess>& processes) {
  TracePlace place{.rank = config_.rank,
                   .local = {},
                   .pids = {},
                   .rank_names = config_.peer_names,
                   .log = config_.log};
  for (int rank = 0; rank < config_.size; ++rank) {
    if (presence_.is_local(rank)) place.local.push_back(rank);
  }
  for (const WatchedProcess& process : processes) place.pids[process.rank] = process.pid;
  const auto memory = [this](int rank) {
    const std::size_t bytes = Recorder::region_bytes();
    return space_->map(words_bytes(config_.size) + static_cast<std::size_t>(rank) * bytes, bytes);
  };
  return std::make_unique<Tracer>(config_.trace, std::move(place), memory);
}

ProcessSetContext& Engine::context_for(int set, std::span<const Submission> submissions) {
  if (set >= 0 && set < kMaxProcessSets) {
    if (ProcessSetContext* context = contexts_[static_cast<std::size_t>(set)].load())
      return *context;
  }
  const std::string what =
      submissions.empty() ? "submit" : name_of(submissions.front().requests.front());
  const auto found = sets_.find(set);
  if (found == sets_.end()) {
    throw Error(ErrorCode::kInvalidArgument, what + ": process set " + std::to_string(set) +
                                                 " is not registered; add it on all ranks first");
  }
  const std::vector<int>& members = found->second.members;
  if (!std::ranges::binary_search(members, config_.rank)) {
    throw Error(ErrorCode::kInvalidArgument, what + ": rank " + std::to_string(config_.rank) +
                                                 " is not a member of process set " +
                                                 std::to_string(set) + " (ranks " + list(members) +
                                                 ")");
  }
  return open_context(set);
}

ProcessSetContext& Engine::open_context(int set) {
  RegisteredSet& registered = sets_.at(set);
  const std::vector<int>& members = registered.members;
  const auto index = static_cast<std::size_t>(set);
  const std::size_t offset =
      sets_offset(config_.size) + index * ProcessSetContext::region_bytes(config_.size);
  const auto check = [this, members](int holder, Nanoseconds waited) {
    check_holder(members[static_cast<std::size_t>(holder)], waited);
  };
  ProcessSetConfig config{.id = set,
                          .members = members,
                          .hosts = hosts_of(members),
                          .negotiation = {},
                          .devices = devices_};
  for (const int member : members) config.names.push_back(peer_name(member));
  config.log = config_.log;
  config.negotiation.cache_capacity = config_.cache_capacity;
  config.negotiation.tuning = config_.tuning;
  config.negotiation.fuse_groups = config_.fuse_groups;
  config.negotiation.check_holder = check;
  auto region =
      space_->map(offset, ProcessSetContext::region_bytes(static_cast<int>(members.size())));
  auto context = std::make_unique<ProcessSetContext>(std::move(config), std::move(region),
                                                     presence_, std::move(registered.links));
  contexts_[index].store(context.get(), std::memory_order_release);
  if (context_count_.load() <= index) context_count_.store(index + 1, std::memory_order_release);
  return *context.release();
}

HostMap Engine::hosts_of(const std::vector<int>& members) const {
  const auto own = std::ranges::lower_bound(members, config_.rank) - members.begin();
  if (hosts_.empty()) return hosts_of_set({members}, members, static_cast<int>(own));
  return hosts_of_set(hosts_, members, static_cast<int>(own));
}

void Engine::add_process_set(int set, std::vector<int> members, SetLinks links) {
  if (set <= 0 || set >= kMaxProcessSets) {
    throw Error(ErrorCode::kInvalidArgument, "at most " + std::to_string(kMaxProcessSets - 1) +
                                                 " process sets may exist at one time");
  }
  const std::lock_guard guard(mutex_);
  sets_[set] = {.members = std::move(members), .links = std::move(links)};
}

void Engine::remove_process_set(int set) {
  while (!take_role(true)) {
    if (stopping_.load()) return;
  }
  std::unique_ptr<ProcessSetContext> context;
  RegisteredSet removed;  // its carrier may need a lock that comes before the mutex
  {
    const std::lock_guard guard(mutex_);
    if (const auto found = sets_.find(set); found != sets_.end()) {
      removed = std::move(found->second);
      sets_.erase(found);
    }
    context.reset(contexts_[static_cast<std::size_t>(set)].exchange(nullptr));
    if (context != nullptr) {
      fail_context(*context, Error(ErrorCode::kAborted, "the process set has been removed"));
    }
  }
  if (context != nullptr) context->leave_devices(!is_over_.load());
  context.reset();
  if (release_role()) ring_background();
  deliver();
}

void Engine::discard_process_set(int set) {
  const std::size_t part_bytes = ProcessSetContext::region_bytes(config_.size);
  const std::size_t offset = sets_offset(config_.size) + static_cast<std::size_t>(set) * part_bytes;
  const std::lock_guard guard(mutex_);
  if (space_ != nullptr) space_->discard(offset, part_bytes);
}

std::vector<int> Engine::members_of(int set) {
  const std::lock_guard guard(mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? std::vector<int>{} : found->second.members;
}

int Engine::flights(int set) {
  let_comparisons_end();
  if (set < 0 || set >= kMaxProcessSets) return 0;
  const std::lock_guard guard(mutex_);
  const ProcessSetContext* context = contexts_[static_cast<std::size_t>(set)].load();
  return context == nullptr ? 0 : context->flights.load();
}

}  // namespace hvd
