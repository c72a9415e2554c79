// What leaders of hosts send each other about submissions, as bytes. All hosts run the same build
// (the handshake sees to it), so integers travel as they lie in memory.
//
// In the steady state a message names tensors by their wire ids: runs of ids, or a bit for each in
// the range where that is shorter. So its length does not grow with names, shapes or requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "control/board.h"

namespace hvd {

using Message = std::vector<std::byte>;

enum class MessageKind : std::uint8_t {
  kArrived = 1,   // up: ids, the last round once more
  kSpelled = 2,   // up: one Arrivals
  kAskFor = 3,    // down: ids that must be spelled
  kBucket = 4,    // down: what runs next
  kWhoLacks = 5,  // up: a name that waits for long
  kLacking = 6,   // down: who has not submitted it
  kTuning = 7,    // down: how the buckets from here on are run
};

// An item of a bucket: known by its id, or told in full.
using BucketEntry = std::variant<std::uint32_t, Decision>;

struct Lacking {
  NameKey key;
  std::vector<int> ranks;  // that have not submitted it
};

MessageKind kind_of(std::span<const std::byte> message);

// kArrived, kAskFor: `ids` rising.
Message write_ids(MessageKind kind, std::span<const std::uint32_t> ids);
std::vector<std::uint32_t> read_ids(std::span<const std::byte> message);
Message write_arrival(const Arrivals& arrival);
Arrivals read_arrival(std::span<const std::byte> message);
Message write_bucket(std::span<const BucketEntry> entries);
std::vector<BucketEntry> read_bucket(std::span<const std::byte> message);
Message write_tuning(const BucketTuning& tuning);
BucketTuning read_tuning(std::span<const std::byte> message);
Message write_lacking(MessageKind kind, const Lacking& lacking);
Lacking read_lacking(std::span<const std::byte> message);

}  // namespace hvd
