// The table's shared memory other than the slots, for the table's own files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "control/negotiation_table.h"

namespace hvd {

// Every slot may have two rounds under way, so rings of this length never overflow.
inline constexpr std::uint32_t kRing = 2 * kMaxSlots;
inline constexpr std::uint32_t kParityBit = 1U << 31;

struct NegotiationTable::Header {
  SharedMutex mutex;
  std::uint32_t joined_count;
  bool is_tuned;
  Tuning tuning;  // if it is
  alignas(64) SharedWord ready_tail;
  SharedWord bucketed;
  SharedWord bucket_tail;
  std::atomic<std::uint64_t> ready_bytes;
  alignas(64) SharedWord outbox_tail;  // slots for the table above
  SharedWord outbox_head;
  SharedWord announced;     // buckets that the tables below know
  SharedWord is_numbering;  // a launch has its number, and its bucket cannot be seen yet
  SharedWord is_ordered;    // see order_launches()
};

struct NegotiationTable::Bucket {
  std::uint32_t begin;  // first item
  std::uint32_t count;
  std::uint32_t finished;  // ranks that have run it
  BucketTuning tuning;
  std::atomic<std::uint64_t> launch;  // its number, and whether it is provisional; 0: none
};

inline std::size_t total_bytes(std::span<const Request> requests) {
  std::size_t bytes = 0;
  for (const Request& request : requests) bytes += request.size_bytes();
  return bytes;
}

}  // namespace hvd
