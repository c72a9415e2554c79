// The process sets of a rank: the registered ones, and the contexts of the sets in use.
//
// A registered set is only an entry in a table until this rank submits to it. Then its context is
// opened. The shared space reserves a part for each possible set. Removing a set unmaps its
// context. Set 0 is the world.
#pragma once

#include <atomic>
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

  // Under the engine's mutex.
  void add(int set, std::vector<int> members, SetLinks links);
  // The objects of a removed set. remove() is for the holder of the progress role. Destroy the
  // objects without the mutex: an external data plane may need a lock that must be taken before the
  // mutex.
  struct Removed {
    SetLinks links;
    std::unique_ptr<ProcessSetContext> context;  // null: never used
  };
  Removed remove(int set);
  // Gives the memory of a removed set back.
  void discard(int set);
  // World ranks of a set, rising; none for a set that is not registered.
  std::vector<int> members_of(int set) const;
  bool is_registered(int set) const { return registered_.contains(set); }
  const SpaceLayout& layout() const { return layout_; }
  // The context of a set, which is opened if necessary. Throws Error if this rank is not a member;
  // the text begins with `what`.
  ProcessSetContext& context_of(int set, const auto& what) {
    if (ProcessSetContext* context = find(set)) return *context;
    return open_for(set, what());
  }
  // Closes the descriptor of the shared space: no context can be opened any more.
  void close_space() { space_.reset(); }

  // Under the mutex or in the progress role.
  ProcessSetContext* find(int set) const {
    if (set < 0 || set >= layout_.set_count()) return nullptr;
    return contexts_[static_cast<std::size_t>(set)].load(std::memory_order_acquire);
  }
  template <typename Use>
  void for_each(Use&& use) const {
    const std::size_t count = open_count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      if (ProcessSetContext* context = open_[i].load(std::memory_order_acquire)) use(*context);
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
  // Whether a step would probably make progress. `may_form`: also a step that forms a bucket.
  bool can_progress(bool may_form) const;

  // In the progress role. These end the work on GPUs: together with the other ranks, or at once.
  void leave_devices();
  void abort_devices();
  bool has_open_gpus() const { return devices_.gpus != nullptr && devices_.gpus->is_open(); }
  const std::shared_ptr<GpuAccess>& gpus() const { return devices_.gpus; }
  // Call it when the world is over here: a closed connection tells other ranks that no more data
  // comes.
  void disconnect();
  void close_copies();  // in a forked child

 private:
  struct Registered {
    std::vector<int> members;
    SetLinks links;  // until the context is opened
  };

  ProcessSetContext& open_for(int set, const std::string& what);
  ProcessSetContext& open(int set, Registered& registered);
  void put_open(ProcessSetContext* context, ProcessSetContext* in_place_of);
  HostMap hosts_of(const std::vector<int>& members) const;
  NegotiationConfig negotiation_of(const std::vector<int>& members, bool is_one_host) const;
  bool is_in_several() const;
  bool may_launch(int set) const;

  const World& world_;
  const Failures& failures_;
  const SpaceLayout layout_;
  std::shared_ptr<SharedSpace> space_;  // null after shutdown
  const DevicePlane devices_;
  std::map<int, Registered> registered_;
  // Contexts are made under the mutex, and removed under it by the holder of the progress role.
  // contexts_: by process set. open_: the open ones without large gaps, for loops of any thread.
  std::vector<std::atomic<ProcessSetContext*>> contexts_;
  std::vector<std::atomic<ProcessSetContext*>> open_;
  std::atomic<std::size_t> open_count_{0};  // all later places are empty
};

}  // namespace hvd
