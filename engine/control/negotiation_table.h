// Negotiation: which tensors every rank of a process set has submitted, and in which order they
// run.
//
// The table lies in shared memory. A tensor name owns a slot; a rank that submits the name arrives
// at the slot. The last rank to arrive makes it ready and appends it to the list of ready items.
// The first free rank cuts the next bucket off that list, and every rank runs the buckets in that
// order. There are no messages and no rounds: a submission is one short critical section.
//
// A group of tensors is one item: it arrives, fails and runs as a whole. A rank that has joined
// counts as arrived everywhere until all have joined. An item that its absence completes is marked,
// so that it takes part with zeros or with nothing. Ranks here are set ranks, except in texts.
//
// Where a set spans hosts, each has a table and the tables form a tree. A table collects the ranks
// of its host and of the hosts below. A complete item goes up through the outbox, as an Arrivals.
// Only the root's table decides. Its buckets come down as Decisions (see relay.h).
//
// Kernels of a collective wait for each other on their GPUs. If a GPU has no room for a second one,
// two ranks must not launch those of two sets in different orders. So buckets of GPU tensors are
// numbered, and launched in this order. Within a host the number is final when the bucket is cut.
// Where a set spans hosts, it is provisional until the hosts have agreed (see launch_order.h).
// Since that costs messages, such a set is ordered only once a rank with GPUs belongs to a second
// set. Two buckets may have the same number; the one of the lower set is launched first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/request.h"
#include "control/slots.h"
#include "core/tuning.h"
#include "fusion/planner.h"
#include "transport/shared_mutex.h"

namespace hvd {

// A rank's note of the slot of a name. It is out of date when the slot has a new generation.
struct SlotRef {
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t slot = kNone;
  std::uint32_t generation = 0;
};

// One tensor, or the first of a group, in a bucket.
struct BucketItem {
  std::uint32_t slot;
  std::uint32_t parity;  // which of the slot's two rounds
};

struct NegotiationConfig {
  int rank = 0;
  int size = 1;
  std::vector<int> members;    // world rank by set rank; empty: the same
  std::vector<int> local;      // set ranks of this host, rising; empty: all
  std::vector<int> collected;  // of this host and the hosts below, rising; empty: all
  bool is_root = true;         // no table is above this one
  std::uint32_t cache_capacity = 1024;
  Tuning tuning;            // until tune() is called; the rank that cuts a bucket uses its own
  bool fuse_groups = true;  // with other tensors
  // The highest number of a launch, in memory that the tables of a host share; null: no numbers.
  std::atomic<std::uint64_t>* launches = nullptr;
  HolderCheck check_holder = [](int, Nanoseconds) {};  // asked while another rank keeps the table
};

// A bucket's place in the order of launches.
struct Launch {
  std::uint64_t number = 0;  // 0: it has none
  bool is_final = true;      // otherwise the final one is not lower
};

// A message to the table above: ranks have submitted a name.
struct Arrivals {
  NameKey key;
  std::vector<Request> requests;  // of the first of them
  std::uint64_t signature = 0;
  std::vector<int> ranks;
  // RowCounts::kPerRank: of each tensor, by `ranks`. kPerPair: each rank's splits.
  std::vector<std::int64_t> rows;
  std::string error;  // why they disagree; empty if they do not
};

// A message from the root's table: a name is to run.
struct Decision {
  NameKey key;
  std::uint32_t wire_id = 0;
  std::vector<Request> requests;
  std::uint64_t signature = 0;
  std::vector<std::int64_t> rows;  // as in Arrivals, for all ranks
  std::string error;
  bool has_absent = false;
};

class NegotiationTable {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the table's part of a region that outlives this object.
  NegotiationTable(std::byte* base, NegotiationConfig config);

  // Holds the table, for the methods below with "under lock". Throws the errors of `check_holder`.
  [[nodiscard]] SharedLock lock() const;

  // Under lock: this rank submits one tensor, or a group. `splits`: of an alltoall, rows for each
  // rank. `ref` is looked up or created. `objection`: why it must fail on all ranks, if it must.
  // True when something became ready.
  bool arrive(const NameKey& key, std::span<const Request> requests,
              std::span<const std::int64_t> splits, std::uint64_t signature, SlotRef& ref,
              const std::string& objection = {});
  // Under lock: cuts the next bucket off the ready items. False when there are none.
  bool form_bucket();
  // Under lock, on the root's table: for buckets that are cut from now on.
  void tune(const Tuning& tuning);
  // Under lock: this rank has run bucket `index`.
  void finish_bucket(std::uint32_t index);

  // Without lock.
  bool has_ready() const;
  std::size_t ready_bytes() const;
  bool has_bucket(std::uint32_t index) const;  // whether bucket number `index` has been cut
  void bucket_items(std::uint32_t index, std::vector<BucketItem>& items) const;
  BucketTuning tuning_of(std::uint32_t index) const;  // of a bucket
  Launch launch_of(std::uint32_t index) const;        // of a bucket
  // Whether a bucket from `from` on has a launch with a lower number, or might have.
  bool has_earlier_launch(std::uint32_t from, std::uint64_t number) const;
  // From now on buckets of GPU tensors are numbered, where the set spans hosts. The tables above
  // get to know it before this host's next arrivals. So what this rank submits from now on is
  // ordered. What it has submitted before may not be.
  void order_launches();
  bool orders_launches() const;

  // Valid for an item between its bucket being cut and finish_bucket on this rank.
  std::optional<std::string> error_of(const BucketItem& item) const;
  bool has_absent(const BucketItem& item) const;  // a rank takes part without a tensor
  bool is_absent(const BucketItem& item) const;   // this rank does
  // The items of a group, or the item itself.
  void tensors_of(const BucketItem& item, std::vector<BucketItem>& tensors) const;
  // Of one of those: the request of the first rank that arrived, and the rows of each rank.
  const Request& request_of(const BucketItem& item) const;
  std::int64_t rows_of(const BucketItem& item, int rank) const;
  // Of an alltoall: rows from every rank to every rank, row by row.
  void splits_of(const BucketItem& item, std::vector<std::int64_t>& splits) const;
  // Of a join: the rank that came last.
  int last_of(const BucketItem& item) const;

  // Between tables; under lock, for the leader of this host.
  //
  // The next slot in the outbox; none when it is empty.
  std::optional<std::uint32_t> next_outgoing();
  // True when one bit is enough to send the slot up: the round is equal to the last one.
  bool is_repeated(std::uint32_t slot) const;
  std::uint32_t wire_id(std::uint32_t slot) const { return slots_[slot].wire_id; }
  void set_wire_id(std::uint32_t slot, std::uint32_t id) { slots_[slot].wire_id = id; }
  // None when nothing has arrived there since the last decision.
  std::optional<Arrivals> arrival_of(std::uint32_t slot) const;
  // Whether some ranks have arrived there, and this has not gone up yet. A round that has gone up
  // may be decided already. If it were sent again, it would count for the next round.
  bool is_partial(std::uint32_t slot) const;
  // The values of messages from other hosts were checked when they were read. The methods from here
  // on throw BadMessage if a message contradicts this table.
  //
  // Ranks below have arrived. True when something became ready, here or for the table above.
  bool merge(const Arrivals& arrival);
  // The same for all of `ranks`, with a round that is equal to the last one. False when the slot
  // has another name now, or none: then the name must be spelled.
  bool merge_repeated(std::uint32_t slot, std::uint32_t wire_id, std::span<const int> ranks);
  // On the root's table: buckets that the tables below do not know yet.
  bool has_unannounced() const;
  std::uint32_t next_unannounced() const;
  void announced();
  // Whether an id is enough to send a decision: all tables below have the round, and know the id.
  bool is_repeated(const BucketItem& item) const;
  Decision decision_of(const BucketItem& item) const;
  // Below the root: takes over a bucket. append() for each item, then close_bucket().
  std::uint32_t append(const Decision& decision);  // the slot
  void append_repeated(std::uint32_t slot);
  // Returns its index. `is_numbered`: it gets a number of this host, which is a proposal.
  std::uint32_t close_bucket(std::uint32_t count, const BucketTuning& tuning, bool is_numbered);
  // Without lock: the hosts have agreed on a bucket's number.
  void settle_launch(std::uint32_t index, std::uint64_t number);
  // The slot of a name; none if the name is not known here.
  std::optional<std::uint32_t> find(const NameKey& key) const { return slots_.find(key); }
  // The collected ranks that have not arrived at a slot, if no rank of this host has. None
  // otherwise: then a rank of this host that has arrived reports the missing ranks.
  std::vector<int> lacking_ranks(std::uint32_t slot) const;
  // Whether a rank has arrived at the name, other than `ranks` (rising) and ranks of tables above.
  bool is_awaited_from(const NameKey& key, std::span<const int> ranks) const;
  // Without lock: whether the outbox has entries.
  bool has_outgoing() const;

  int size() const { return config_.size; }
  const std::vector<int>& members() const { return config_.members; }

  // Ranks that have not arrived at a slot where this rank has arrived; under lock.
  std::vector<int> missing_ranks(const SlotRef& ref) const;
  // Whether some rank has arrived at the name, and this one has not; under lock.
  bool is_awaited(const NameKey& key) const;
  // Whether this rank has arrived at the name, and all have not; under lock.
  bool has_submitted(const NameKey& key) const;

 private:
  struct Header;
  struct Bucket;
  struct Offsets;

  static Offsets offsets(int size);
  void record(std::uint32_t index, std::span<const Request> requests, std::uint64_t signature,
              int rank, std::size_t size_bytes);
  std::optional<std::string> disagreement(Slot& slot, std::span<const Request> requests,
                                          int rank) const;
  void record_rows(std::uint32_t index, std::span<const Request> requests,
                   std::span<const std::int64_t> splits);
  void prepare_slot(std::uint32_t index, std::size_t chain_length);
  void count_arrival(Slot& slot, int rank);
  bool collect(std::uint32_t index);
  std::size_t chain_length(std::span<const Request> requests) const;
  template <typename Use>
  void for_each_rows(std::uint32_t index, std::uint32_t parity, std::span<const int> ranks,
                     Use&& use) const;
  void read_rows(std::uint32_t index, std::uint32_t parity, std::span<const int> ranks,
                 std::vector<std::int64_t>& rows) const;
  void write_rows(std::uint32_t index, std::uint32_t parity, std::span<const int> ranks,
                  std::span<const std::int64_t> rows);
  void check_repeatable(std::uint32_t index, const char* message) const;
  void check_repeated(std::uint32_t index) const;
  void check_decision(const Decision& decision) const;
  bool is_alike(const Slot& slot, std::uint32_t parity, std::uint64_t signature,
                std::span<const Request> requests) const;
  void check_own_rows(std::uint32_t index, std::uint32_t parity, const Decision& decision) const;
  void check_bucket(std::uint32_t count, bool is_numbered) const;
  std::uint32_t begin_decided(std::uint32_t index);
  void push_outgoing(std::uint32_t index);
  void push_item(std::uint32_t item);
  void read_requests(std::uint32_t index, std::uint32_t parity,
                     std::vector<Request>& requests) const;
  void store_requests(std::uint32_t index, std::uint32_t parity, std::span<const Request> requests);
  bool is_complete(Slot& slot) const;
  void make_ready(std::uint32_t index);
  void mark_absent(std::uint32_t index, std::uint32_t parity);
  void set_error(Slot& slot, std::uint32_t parity, const std::string& text) const;
  bool join(int rank);
  bool end_join(std::uint32_t index, int last);
  void clear_joined();
  std::uint32_t collected_count() const {
    return static_cast<std::uint32_t>(config_.collected.size());
  }
  bool has_joined(int rank) const { return joined_[rank] != 0; }
  bool has_arrived(Slot& slot, int rank, std::uint32_t round) const;
  std::uint32_t round_of(const BucketItem& item) const;
  std::uint32_t next_in_chain(std::uint32_t index) const;
  FusionItem fusion_item(std::uint32_t item) const;
  std::uint32_t add_bucket(std::uint32_t begin, std::uint32_t count, const BucketTuning& tuning,
                           bool is_numbered);
  bool is_one_host() const;
  bool must_number(std::uint32_t item) const;
  std::uint64_t new_launch();
  int world_rank(int rank) const;

  const NegotiationConfig config_;
  Header* const header_;
  std::uint32_t* const joined_;  // by rank
  std::uint32_t* const items_;   // ring of ready items: slot, parity in the top bit
  Bucket* const buckets_;        // ring
  std::uint32_t* const outbox_;  // ring of slots
  SlotTable slots_;
  const std::vector<int> all_ranks_;
};

}  // namespace hvd
