// Slots: the table's memory of names. A name owns a slot; a group of tensors, or an alltoall, owns
// a chain of slots. They are in shared memory, which is zeroed at the start, and change only under
// the table's lock.
//
// A slot stays after use (the response cache): a name that comes again finds its slot by number. At
// most `cache_capacity` slots rest unused; the least recently used one is given up first. Two
// rounds of one name may overlap: a fast rank submits again before a slow one has run the first
// round. Three never overlap. So the data of a round exists twice; `parity` selects one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "control/request.h"

namespace hvd {

// Slots of one process set on a host; memory is committed only for those in use.
inline constexpr std::uint32_t kMaxSlots = 1U << 16;

struct NameKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const NameKey&) const = default;
};
NameKey key_of(std::string_view name);
struct NameKeyHash {
  std::size_t operator()(const NameKey& key) const { return key.low; }
};

// A round's data outside of the slot's first line. It is not written if a name repeats its last
// round.
struct Round {
  Request request;  // of the first rank to arrive that sent this signature
  char error[512];
};

// All fields that change in every round are in one cache line, which moves between the ranks'
// cores. Links are slot + 1, and 0 for none, so that zeroed memory is an empty table.
struct alignas(64) Slot {
  std::uint32_t generation;     // counts the names it has had
  std::uint32_t round;          // rounds completed by arrival of all
  std::uint32_t arrived_count;  // in the round being collected
  std::uint32_t unfinished;     // rounds ready but not yet run by all ranks
  std::uint32_t older, newer;   // among resting slots
  std::int32_t first_rank[2];   // the first one that arrived in the round
  std::uint64_t signature[2];
  bool has_error[2];
  bool has_absent[2];  // some rank had joined and takes part without a tensor
  bool is_resting;
  std::uint32_t tensors[2];  // in the group; 1 for a single tensor
  // The second line.
  alignas(64) NameKey key;
  std::uint32_t next;           // in the hash chain or the free list
  std::uint32_t next_in_chain;  // the next tensor of the group
  std::uint64_t size_bytes[2];  // moved by the round
  std::uint32_t wire_id;        // its id in messages between hosts; 0: none yet
  bool is_spelled[2];           // some host needs the whole round, not only a bit
  bool is_outgoing;             // the round being collected is in the outbox, or has gone up
  Round rounds[2];
};

class SlotTable {
 public:
  static std::size_t region_bytes(int size);

  SlotTable(std::byte* base, int size, std::uint32_t cache_capacity);

  Slot& operator[](std::uint32_t index) const;
  // By rank: rows that it gives in the round. With splits: rows that the k-th rank sends to it,
  // where k is the slot's place in the chain.
  std::int64_t* rows(Slot& slot, std::uint32_t parity) const;
  // By rank: the last round in which it arrived.
  std::uint32_t* arrived_rounds(Slot& slot) const;
  // All slots that were ever used have smaller numbers.
  std::uint32_t used() const;

  std::optional<std::uint32_t> find(const NameKey& key) const;
  // Throws Error when too many names are in flight.
  std::uint32_t find_or_create(const NameKey& key);
  // Makes the chain that begins at `head` at least `length` slots long. Throws the same.
  void extend_chain(std::uint32_t head, std::size_t length);
  void rest(std::uint32_t index);
  void wake_up(std::uint32_t index);

 private:
  struct Header;

  std::uint32_t new_slot();
  void forget(std::uint32_t index);
  void forget_oldest();
  void release(std::uint32_t index);

  const int size_;
  const std::uint32_t cache_capacity_;
  Header* const header_;
  std::uint32_t* const heads_;  // hash table: slot + 1, 0 for empty
  std::byte* const slots_;
};

}  // namespace hvd
