// The messages about submissions between leaders of hosts, as bytes. All hosts run the same build
// (the handshake checks it), so integers have the same bytes as in memory.
//
// The readers are pure. They check every value against the set and throw BadMessage. The table
// makes the other checks, such as which ranks have arrived (see negotiation_checks.cc).
//
// In the steady state a message names tensors by their wire ids: runs of ids, or a bit for each id
// of a range if that is shorter. So its length does not grow with names, shapes or requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "control/launch_order.h"
#include "control/negotiation_table.h"

namespace hvd {

using Message = std::vector<std::byte>;

enum class MessageKind : std::uint8_t {
  kArrived = 1,    // up: ids of rounds that are equal to the last ones
  kSpelled = 2,    // up: one Arrivals
  kAskFor = 3,     // down: ids that must be spelled
  kBucket = 4,     // down: the next bucket
  kWhoLacks = 5,   // up: a name that waits for long
  kLacking = 6,    // down: the ranks that have not submitted it
  kTuning = 7,     // down: the tuning of the next buckets
  kMayCome = 8,    // up: a name that a rank would submit once another rank has
  kAwaited = 9,    // down: a rank above has submitted it
  kOrdered = 10,   // up: from now on buckets of GPU tensors are to be numbered
  kNumbered = 11,  // down: the next bucket, which waits for its number
  kProposed = 12,  // up: the highest number that hosts propose for such a bucket
  kLaunch = 13,    // down: its final number
};

// Ids that follow one another.
struct IdRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Items of a bucket: a run of ids, or one whole decision.
using BucketEntry = std::variant<IdRun, Decision>;
// Adds one by its id.
void add_id(std::vector<BucketEntry>& entries, std::uint32_t id);

enum class IdForm : std::uint8_t { kRuns = 0, kBits = 1 };
enum class EntryForm : std::uint8_t { kRun = 0, kDecision = 1 };

struct Lacking {
  NameKey key;
  std::vector<int> ranks;  // that have not submitted it
};

// What a message is checked against: the process set and the sender.
struct TreeScope {
  int size = 1;
  std::span<const int> members;   // world rank by set rank, rising; empty: the same
  std::span<const int> speakers;  // set ranks that a child speaks for, rising; empty: the parent
};

MessageKind kind_of(std::span<const std::byte> message);
// "arrival": for errors.
const char* name_of(MessageKind kind);

// kArrived, kAskFor: `ids` rising.
Message write_ids(MessageKind kind, std::span<const std::uint32_t> ids);
std::vector<std::uint32_t> read_ids(std::span<const std::byte> message);
Message write_arrival(const Arrivals& arrival);
Arrivals read_arrival(std::span<const std::byte> message, const TreeScope& scope);
// kBucket, kNumbered.
Message write_bucket(MessageKind kind, std::span<const BucketEntry> entries);
std::vector<BucketEntry> read_bucket(std::span<const std::byte> message, const TreeScope& scope);
Message write_tuning(const BucketTuning& tuning);
BucketTuning read_tuning(std::span<const std::byte> message);
Message write_lacking(MessageKind kind, const Lacking& lacking);
Lacking read_lacking(std::span<const std::byte> message, const TreeScope& scope);
// kMayCome, kAwaited.
Message write_name(MessageKind kind, const NameKey& key);
NameKey read_name(std::span<const std::byte> message);
// kOrdered has no values.
Message write_ordered();
void read_ordered(std::span<const std::byte> message);
// kProposed, kLaunch.
Message write_launch(MessageKind kind, const LaunchNumber& launch);
LaunchNumber read_launch(std::span<const std::byte> message);

}  // namespace hvd
