// The process sets of a rank: which are registered, and the contexts of those in use.
//
// A registered set is a line in a table until this rank submits to it; then its context is opened.
// The shared space reserves a part for each possible set. Removing a set unmaps its context.
// Set 0 is the world.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/connections.h"
#include "runtime/failures.h"
#include "runtime/process_set_context.h"
#include "runtime/space_layout.h"
#include "runtime/world.h"

namespace hvd {

class ProcessSets {
 public:
  // Opens the context of the world. `failures` decides when the holder of a table is lost.
  ProcessSets(const World& world, const Failures& failures, std::shared_ptr<SharedSpace> space,
              DevicePlane devices, SetLinks links);
  ~ProcessSets();
  ProcessSets(const ProcessSets&) = delete;
  ProcessSets& operator=(const ProcessSets&) = delete;

  // Under the engine's mutex.
  void add(int set, std::vector<int> members, SetLinks links);
  // What belongs to a set that is removed. By the holder of the progress role, too; to be destroyed
  // without the mutex, since an external data plane may need a lock that comes before it.
  struct Removed {
    SetLinks links;
    std::unique_ptr<ProcessSetContext> context;  // null: never used
  };
  Removed remove(int set);
  // Gives the memory of a removed set back.
  void discard(int set);
  // World ranks of a set, rising; none for a set that is not registered.
  std::vector<int> members_of(int set) const;
  // The context of a set, opened if need be. Throws Error, which begins with `what`, where this
  // rank is no member.
  ProcessSetContext& context_of(int set, const auto& what) {
    if (ProcessSetContext* context = find(set)) return *context;
    return open_for(set, what());
  }
  // Closes the descriptor of the shared space: no context can be opened any more.
  void close_space() { space_.reset(); }

  // Under the mutex or in the progress role.
  ProcessSetContext* find(int set) const {
    if (set < 0 || set >= kMaxProcessSets) return nullptr;
    return contexts_[static_cast<std::size_t>(set)].load(std::memory_order_acquire);
  }
  template <typename Use>
  void for_each(Use&& use) const {
    const std::size_t count = context_count_.load(std::memory_order_acquire);
    for (std::size_t set = 0; set < count; ++set) {
      if (ProcessSetContext* context = contexts_[set].load(std::memory_order_acquire))
        use(*context);
    }
  }
  template <typename Test>
  bool any_of(Test&& test) const {
    bool found = false;
    for_each([&](ProcessSetContext& context) { found = found || test(context); });
    return found;
  }
  bool has_active() const;
  ProcessSetContext* only_active() const;  // null for none or several
  bool has_ready() const;
  std::size_t ready_bytes() const;
  int pending_count() const;  // operations of this rank that are not done
  // Can a step be made, as far as can be seen without one? One that forms a bucket too?
  bool can_progress(bool may_form) const;

  // In the progress role. Ends what is under way on GPUs: together with the other ranks, or not.
  void leave_devices();
  void abort_devices();
  bool has_open_gpus() const { return devices_.gpus != nullptr && devices_.gpus->is_open(); }
  const std::shared_ptr<GpuAccess>& gpus() const { return devices_.gpus; }
  // When the world is over here: a closed connection tells other ranks that nothing more comes.
  void disconnect();
  void close_copies();  // in a forked child

 private:
  struct Registered {
    std::vector<int> members;
    SetLinks links;  // until the context is opened
  };

  ProcessSetContext& open_for(int set, const std::string& what);
  ProcessSetContext& open(int set, Registered& registered);
  HostMap hosts_of(const std::vector<int>& members) const;

  const World& world_;
  const Failures& failures_;
  const SpaceLayout layout_;
  std::shared_ptr<SharedSpace> space_;  // null after shutdown
  const DevicePlane devices_;
  std::map<int, Registered> registered_;
  // By process set; made under the mutex, dropped under it by the holder of the progress role.
  std::vector<std::atomic<ProcessSetContext*>> contexts_{kMaxProcessSets};
  std::atomic<std::size_t> context_count_{0};  // sets above have none
};

}  // namespace hvd
