#include "runtime/process_sets.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "core/quiet_thread.h"
#include "runtime/submission.h"

namespace hvd {

ProcessSets::ProcessSets(const World& world, const Failures& failures,
                         std::shared_ptr<SharedSpace> space, DevicePlane devices, SetLinks links)
    : world_(world),
      failures_(failures),
      layout_{world.config.size},
      space_(std::move(space)),
      devices_(std::move(devices)),
      contexts_(static_cast<std::size_t>(layout_.set_count())),
      open_(contexts_.size()) {
  std::vector<int> members(static_cast<std::size_t>(world.config.size));
  std::iota(members.begin(), members.end(), 0);
  add(0, std::move(members), std::move(links));
  open(0, registered_.at(0));
}

ProcessSets::~ProcessSets() {
  for (std::atomic<ProcessSetContext*>& context : contexts_) delete context.load();
}

void ProcessSets::add(int set, std::vector<int> members, SetLinks links) {
  registered_[set] = {.members = std::move(members), .links = std::move(links)};
  if (!is_in_several()) return;
  for_each([](ProcessSetContext& context) { context.negotiation.order_launches(); });
}

// Whether launches of this rank's sets may get into each other's way.
bool ProcessSets::is_in_several() const {
  if (devices_.gpus == nullptr) return false;
  return std::ranges::count_if(registered_, [this](const auto& entry) {
           const std::vector<int>& members = entry.second.members;
           return members.size() > 1 && std::ranges::binary_search(members, world_.config.rank);
         }) > 1;
}

ProcessSets::Removed ProcessSets::remove(int set) {
  Removed removed;
  if (const auto found = registered_.find(set); found != registered_.end()) {
    removed.links = std::move(found->second.links);
    registered_.erase(found);
  }
  removed.context.reset(contexts_[static_cast<std::size_t>(set)].exchange(nullptr));
  if (removed.context != nullptr) put_open(nullptr, removed.context.get());
  return removed;
}

// Stores `context` in the first place that has `in_place_of`.
void ProcessSets::put_open(ProcessSetContext* context, ProcessSetContext* in_place_of) {
  std::size_t at = 0;
  while (open_[at].load() != in_place_of) ++at;
  open_[at].store(context, std::memory_order_release);
  if (open_count_.load() <= at) open_count_.store(at + 1, std::memory_order_release);
}

void ProcessSets::discard(int set) {
  if (space_ != nullptr) space_->discard(layout_.set_offset(set), layout_.set_bytes(set));
}

std::vector<int> ProcessSets::members_of(int set) const {
  const auto found = registered_.find(set);
  return found == registered_.end() ? std::vector<int>{} : found->second.members;
}

ProcessSetContext& ProcessSets::open_for(int set, const std::string& what) {
  const auto found = registered_.find(set);
  if (found == registered_.end()) {
    throw Error(ErrorCode::kInvalidArgument, what + ": process set " + std::to_string(set) +
                                                 " is not registered; add it on all ranks first");
  }
  const std::vector<int>& members = found->second.members;
  if (std::ranges::binary_search(members, world_.config.rank)) return open(set, found->second);
  throw Error(ErrorCode::kInvalidArgument, what + ": rank " + std::to_string(world_.config.rank) +
                                               " is not a member of process set " +
                                               std::to_string(set) + " (ranks " + list(members) +
                                               ")");
}

ProcessSetContext& ProcessSets::open(int set, Registered& registered) {
  const std::vector<int>& members = registered.members;
  HostMap hosts = hosts_of(members);
  const bool is_one_host = hosts.host_count() == 1;
  ProcessSetConfig config{.id = set,
                          .members = members,
                          .hosts = std::move(hosts),
                          .negotiation = negotiation_of(members, is_one_host),
                          .devices = devices_};
  for (const int member : members) config.names.push_back(world_.peer_name(member));
  config.log = world_.config.log;
  config.devices.may_launch = [this, set] { return may_launch(set); };
  auto region = space_->map(layout_.set_offset(set),
                            ProcessSetContext::region_bytes(static_cast<int>(members.size())));
  auto context = std::make_unique<ProcessSetContext>(std::move(config), std::move(region),
                                                     world_.presence, std::move(registered.links));
  if (is_in_several()) context->negotiation.order_launches();
  const auto index = static_cast<std::size_t>(set);
  contexts_[index].store(context.get(), std::memory_order_release);
  put_open(context.get(), nullptr);
  return *context.release();
}

NegotiationConfig ProcessSets::negotiation_of(const std::vector<int>& members,
                                              bool is_one_host) const {
  const EngineConfig& world = world_.config;
  NegotiationConfig config;
  config.cache_capacity = world.cache_capacity;
  config.tuning = world.tuning;
  config.fuse_groups = world.fuse_groups;
  // A host without GPUs must take part in the agreement, too.
  config.launches = !is_one_host || devices_.gpus != nullptr ? world_.launches : nullptr;
  config.check_holder = [this, members](int holder, Nanoseconds waited) {
    failures_.check_holder(members[static_cast<std::size_t>(holder)], waited);
  };
  return config;
}

// In the progress role: whether no other set has a bucket that must be launched before this one's.
// What is numbered later gets a higher number, since this host knows this one. Sets of equal
// numbers run in their own order.
bool ProcessSets::may_launch(int set) const {
  const ProcessSetContext& own = *find(set);
  const Launch launch = own.negotiation.launch_of(own.cursor);
  if (launch.number == 0) return true;
  if (!launch.is_final) return false;
  return !any_of([&](const ProcessSetContext& other) {
    const std::uint64_t limit = launch.number + (other.id < own.id ? 1 : 0);
    return &other != &own && other.negotiation.has_earlier_launch(other.cursor, limit) &&
           other.backend->launches();
  });
}

HostMap ProcessSets::hosts_of(const std::vector<int>& members) const {
  const auto own = std::ranges::lower_bound(members, world_.config.rank) - members.begin();
  if (!world_.spans_hosts()) return hosts_of_set({members}, members, static_cast<int>(own));
  HostMap map = hosts_of_set(world_.hosts, members, static_cast<int>(own));
  map.least_channels = world_.config.link_connections;
  return map;
}

bool ProcessSets::has_active() const {
  return any_of([](const ProcessSetContext& context) { return context.is_active(); });
}

ProcessSetContext* ProcessSets::only_active() const {
  ProcessSetContext* only = nullptr;
  int count = 0;
  for_each([&](ProcessSetContext& context) {
    if (!context.is_active()) return;
    only = &context;
    ++count;
  });
  return count == 1 ? only : nullptr;
}

bool ProcessSets::has_ready() const {
  return any_of([](const ProcessSetContext& context) { return context.negotiation.has_ready(); });
}

std::size_t ProcessSets::ready_bytes() const {
  std::size_t bytes = 0;
  for_each([&](const ProcessSetContext& context) { bytes += context.negotiation.ready_bytes(); });
  return bytes;
}

int ProcessSets::pending_count() const {
  int count = 0;
  for_each([&](const ProcessSetContext& context) { count += context.pending.load(); });
  return count;
}

bool ProcessSets::can_progress(bool may_form) const {
  return any_of([&](const ProcessSetContext& context) {
    return context.is_active() && context.can_progress(may_form);
  });
}

void ProcessSets::leave_devices() {
  for_each([](ProcessSetContext& context) { context.leave_devices(true); });
}

// All sets at the same time: a set's work on a GPU may delay the end of another set.
void ProcessSets::abort_devices() {
  if (!has_open_gpus()) return;
  std::vector<std::thread> threads;
  for_each([&](ProcessSetContext& context) {
    threads.push_back(quiet_thread([&context] { context.leave_devices(false); }));
  });
  for (std::thread& thread : threads) thread.join();
}

void ProcessSets::disconnect() {
  for_each([](ProcessSetContext& context) { context.disconnect(); });
}

void ProcessSets::close_copies() {
  for_each([](ProcessSetContext& context) { context.close_copies(); });
}

}  // namespace hvd
