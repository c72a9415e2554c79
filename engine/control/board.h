// Negotiation inside a host: which tensors every rank has submitted, and in which order they run.
//
// The board lies in shared memory. A tensor name owns a slot; a rank that submits the name arrives
// at the slot. The last rank to arrive makes it ready and appends it to the list of ready items.
// Whoever is free first cuts the next bucket off that list, and every rank runs the buckets in that
// order. There are no messages and no rounds: a submission is one short critical section, whoever
// makes it.
//
// Slots stay after use (the response cache): a name that comes again finds its slot by number and
// compares one hash. At most `cache_capacity` slots rest unused; the least recently used goes
// first. Two rounds of one name may overlap (a fast rank submits again before a slow one has run
// the first), never three, so what belongs to a round is kept twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/request.h"
#include "core/error.h"
#include "fusion/planner.h"
#include "transport/shared_mutex.h"

namespace hvd {

// Names that may be known to a host at one time; memory is committed only for those in use.
inline constexpr std::uint32_t kMaxSlots = 1U << 16;

struct NameKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const NameKey&) const = default;
};
NameKey key_of(std::string_view name);

// A rank's memory of where a name lives; stale when the slot has a new generation.
struct SlotRef {
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t slot = kNone;
  std::uint32_t generation = 0;
};

// One tensor of a bucket.
struct BucketItem {
  std::uint32_t slot;
  std::uint32_t parity;  // which of the slot's two rounds
};

struct BoardConfig {
  int rank = 0;
  int size = 1;
  std::uint32_t cache_capacity = 1024;
  std::size_t fusion_threshold_bytes = 128UL << 20;
  HolderCheck check_holder = [](int, Nanoseconds) {};  // asked while another rank keeps the board
};

// Why the world ended, if a rank said so.
struct Alarm {
  ErrorCode code = ErrorCode::kInternal;
  int rank = -1;
  std::string text;
};

class Board {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the board's part of a region that outlives this object.
  Board(std::byte* base, const BoardConfig& config);

  // Holds the board; the methods below that say so need one. Throws what `check_holder` throws.
  [[nodiscard]] SharedLock lock() const;

  // Under lock: this rank submits. `ref` is looked up or created. True when all ranks have arrived.
  bool arrive(const NameKey& key, const Request& request, std::uint64_t signature, SlotRef& ref);
  // Under lock: cuts the next bucket off the ready items. False when there are none.
  bool form_bucket();
  // Under lock: this rank has run bucket `index`.
  void finish_bucket(std::uint32_t index);

  // Without lock.
  bool has_ready() const;
  std::size_t ready_bytes() const;
  bool has_bucket(std::uint32_t index) const;  // has bucket number `index` been cut?
  void bucket_items(std::uint32_t index, std::vector<BucketItem>& items) const;

  // Valid for an item between its bucket being cut and finish_bucket on this rank.
  std::optional<std::string> error_of(const BucketItem& item) const;
  std::int64_t rows_of(const BucketItem& item, int rank) const;
  // Ranks that have not arrived at a slot where this rank has; under lock.
  std::vector<int> missing_ranks(const SlotRef& ref) const;

  // The alarm word moves whenever a rank leaves or dies or raises an alarm.
  std::uint32_t alarm_count() const;
  void raise_alarm(const Alarm& alarm);  // the first one is kept
  void touch_alarm();                    // a rank's liveness changed
  // Remembers the first rank that left of its own accord: later ones may only follow it.
  void note_departure(int rank);
  std::optional<int> first_departure() const;
  std::optional<Alarm> alarm() const;

 private:
  struct Header;
  struct Slot;
  struct Round;
  struct Bucket;

  Slot& slot(std::uint32_t index) const;
  std::int64_t* rows(Slot& slot, std::uint32_t parity) const;
  std::uint32_t* arrived_rounds(Slot& slot) const;

  std::uint32_t find_or_create(const NameKey& key);
  std::uint32_t new_slot();
  void forget(std::uint32_t index);
  void forget_oldest();
  void rest(std::uint32_t index);
  void wake_up(std::uint32_t index);
  void record(Slot& slot, std::uint32_t parity, const Request& request, std::uint64_t signature);
  void make_ready(std::uint32_t index, Slot& slot);
  FusionItem fusion_item(std::uint32_t item) const;

  const BoardConfig config_;
  Header* const header_;
  std::uint32_t* const heads_;  // hash table: slot + 1, 0 for empty
  std::uint32_t* const items_;  // ring of ready items: slot, parity in the top bit
  Bucket* const buckets_;       // ring
  std::byte* const slots_;
};

}  // namespace hvd
