// The tensors of this rank by name and by slot, and which of them are in flight.
//
// An entry outlives its operation, so that a name that comes again finds its slot at once. The
// entry is deleted when another name gets its slot. All methods need the engine's mutex.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/work.h"
#include "control/negotiation_table.h"
#include "core/rounding.h"
#include "gpu/stream_dependency.h"
#include "runtime/handle_table.h"

namespace hvd {

// One tensor of this rank. `in` and `out` stay valid until the handle is done. `out` is null if the
// engine allocates the result. If the other ranks decide the number of rows, the result goes to
// `out` only if it has exactly `out_bytes`; else the engine allocates it, too. `errors`: of an
// allreduce in a low-bit format, one float32 for each element, in host memory.
struct Tensor {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int device = kHostDevice;
  std::size_t out_bytes = 0;
  float* errors = nullptr;
};

// "allreduce 'grad/fc1'", for messages.
std::string title_of(std::string_view name, const Request& request);

// The operation of one name: a tensor or a group.
struct Entry {
  std::string name;
  NameKey key;
  SlotRef ref;
  std::uint32_t bound_slot = SlotRef::kNone;  // by_slot_ points here, and nowhere else, to it
  std::vector<Request> requests;              // one for each tensor, at least one
  std::vector<Tensor> tensors;
  std::vector<KeptErrors> kept_errors;  // by tensor, where the engine keeps them
  std::uint64_t kept_signature = 0;     // of the tensors that they are of
  std::vector<std::int64_t> splits;     // of an alltoall
  std::uint64_t signature = 0;
  std::uint64_t uses = 0;     // how often the name has come
  Rounding rounding = {};     // of this use, in low-bit formats
  std::uint32_t label = ~0U;  // in the flight recorder
  HandleId handle = 0;
  std::size_t position = 0;    // in the handle
  bool is_submitting = false;  // chosen by a submit call that has not placed it yet
  bool is_in_flight = false;
  bool stall_reported = false;
  bool has_told_arrivals = false;  // to the parent in the tree
  std::int64_t submitted_ns = 0;
  std::string objection;      // debug mode: what is wrong with the input
  bool must_compare = false;  // and whether the result is to be compared
  std::size_t in_flight_index = 0;
  std::vector<Output> outputs;
  StreamDependencyPtr dependency;  // of tensors on GPUs

  const Request& request() const { return requests.front(); }
  std::size_t size_bytes() const;  // of all its tensors
  std::string title() const;
};

class TensorTable {
 public:
  // `matched`: the part of the name that is the same on all ranks.
  Entry& find_or_create(std::string_view name, std::string_view matched);
  // Call it when the entry has a slot. The slot may have belonged to another name before.
  void bind_slot(Entry& entry);
  Entry& by_slot(std::uint32_t slot) { return *by_slot_[slot]; }

  // The entry's operation begins or ends.
  void begin(Entry& entry);
  void end(Entry& entry);
  const std::vector<Entry*>& in_flight() const { return in_flight_; }

 private:
  std::unordered_map<NameKey, std::unique_ptr<Entry>, NameKeyHash> by_key_;
  std::vector<Entry*> by_slot_;
  std::vector<Entry*> in_flight_;
};

}  // namespace hvd
