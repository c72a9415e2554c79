// Slots: the table's memory of names. A name owns a slot; a group of tensors, or an alltoall, owns
// a chain of them. All lies in shared memory, zeroed at the start, and is changed under the table's
// lock.
//
// A slot stays after use (the response cache): a name that comes again finds it by number. At most
// `cache_capacity` slots rest unused; the least recently used goes first. Two rounds of one name
// may overlap (a fast rank submits again before a slow one has run the first), never three, so what
// belongs to a round is kept twice; `parity` says which.
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

// A round's data beside the slot's first line; not written while a name repeats itself.
struct Round {
  Request request;  // of the first rank to arrive that sent this signature
  char error[512];
};

// All that changes from round to round lies in one cache line: the ranks' cores pass it around.
// Links are slot + 1, 0 for none, so that zeroed memory is an empty table.
struct alignas(64) Slot {
  std::uint32_t generation;     // counts the names it has had
  std::uint32_t round;          // rounds completed by arrival of all
  std::uint32_t arrived_count;  // in the round being collected
  std::uint32_t unfinished;     // rounds ready but not yet run by all ranks
  std::uint32_t older, newer;   // among resting slots
  std::int32_t first_rank[2];   // that arrived in the round
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
  bool is_spelled[2];           // some host needs the round in full, not as a bit
  bool is_outgoing;             // the round being collected is in the outbox, or has gone up
  Round rounds[2];
};

class SlotTable {
 public:
  static std::size_t region_bytes(int size);

  SlotTable(std::byte* base, int size, std::uint32_t cache_capacity);

  Slot& operator[](std::uint32_t index) const;
  // By rank: rows that it gives in the round (splits: that the chain's k-th rank sends to it).
  std::int64_t* rows(Slot& slot, std::uint32_t parity) const;
  // By rank: the round at which it arrived last.
  std::uint32_t* arrived_rounds(Slot& slot) const;
  // All slots ever used have smaller numbers.
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
