// The table of collectives: one row says what distinguishes a collective from the others. Request
// checks, messages, fusion, row counts, the plugins of frameworks and `_native.COLLECTIVES` derive
// from it. How the data moves is a method of each backend (backend/backend.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd {

// The numbers are part of the seam to Python.
enum class Kind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kAlltoall = 4,
  kReducescatter = 5,
  kJoin = 6,
};
inline constexpr int kKindCount = 7;

// How the shape of the result follows from the shape of the tensor.
enum class ResultShape : std::uint8_t {
  kNone,          // there is no tensor
  kSame,          // the same shape
  kAllRows,       // the rows of all ranks
  kReceivedRows,  // the rows that all ranks send to this one
  kOwnRows,       // this rank's part of the rows
};

// Which numbers of rows the ranks tell each other.
enum class RowCounts : std::uint8_t {
  kNone,     // the tensor has the same shape on all ranks
  kPerRank,  // first dimensions may differ: one number from each rank
  kPerPair,  // the splits: a number from each rank for each rank
};

// What happens to a tensor without dimensions.
enum class Scalars : std::uint8_t {
  kAllowed,
  kRefused,  // by the rank that submits it
  kFail,     // on all ranks
};

// How a rank that has joined takes part.
enum class AbsentRank : std::uint8_t {
  kWaits,         // there is nothing to give
  kGivesZeros,    // of the shape that the others give
  kGivesNoRows,   // no rows
  kGivesNothing,  // it must not be the root
};

struct Collective {
  Kind kind;
  const char* name;        // messages, counters, Python
  const char* upper_name;  // texts about mismatches, timeline
  ResultShape result = ResultShape::kNone;
  AbsentRank absent_rank = AbsentRank::kWaits;
  bool is_reduction = false;                // has a reduce op, a prescale and a postscale factor
  bool has_root = false;                    // has a root rank
  bool may_be_grouped = false;              // several tensors may share one name
  bool is_differentiable = false;           // frameworks give it a gradient
  RowCounts row_counts = RowCounts::kNone;  // kPerPair: takes splits, returns the received ones too
  Scalars scalars = Scalars::kAllowed;
  const char* row_rule = nullptr;  // what it does with the first dimension, if it needs one

  constexpr bool has_tensors() const { return result != ResultShape::kNone; }
  constexpr bool keeps_shape() const { return result == ResultShape::kSame; }
  constexpr bool has_splits() const { return row_counts == RowCounts::kPerPair; }
};

// By kind. Those with tensors may share a bucket with others of their kind.
inline constexpr std::array<Collective, kKindCount> kCollectives{{
    {.kind = Kind::kAllreduce,
     .name = "allreduce",
     .upper_name = "ALLREDUCE",
     .result = ResultShape::kSame,
     .absent_rank = AbsentRank::kGivesZeros,
     .is_reduction = true,
     .may_be_grouped = true,
     .is_differentiable = true},
    {.kind = Kind::kAllgather,
     .name = "allgather",
     .upper_name = "ALLGATHER",
     .result = ResultShape::kAllRows,
     .absent_rank = AbsentRank::kGivesNoRows,
     .may_be_grouped = true,
     .is_differentiable = true,
     .row_counts = RowCounts::kPerRank,
     .scalars = Scalars::kFail,
     .row_rule = "joins tensors along their first dimension"},
    {.kind = Kind::kBroadcast,
     .name = "broadcast",
     .upper_name = "BROADCAST",
     .result = ResultShape::kSame,
     .absent_rank = AbsentRank::kGivesNothing,
     .has_root = true,
     .is_differentiable = true},
    {.kind = Kind::kBarrier, .name = "barrier", .upper_name = "BARRIER"},
    {.kind = Kind::kAlltoall,
     .name = "alltoall",
     .upper_name = "ALLTOALL",
     .result = ResultShape::kReceivedRows,
     .absent_rank = AbsentRank::kGivesNoRows,
     .is_differentiable = true,
     .row_counts = RowCounts::kPerPair,
     .scalars = Scalars::kRefused,
     .row_rule = "sends parts of the first dimension"},
    {.kind = Kind::kReducescatter,
     .name = "reducescatter",
     .upper_name = "REDUCESCATTER",
     .result = ResultShape::kOwnRows,
     .absent_rank = AbsentRank::kGivesZeros,
     .is_reduction = true,
     .may_be_grouped = true,
     .is_differentiable = true,
     .scalars = Scalars::kRefused,
     .row_rule = "divides the first dimension among the ranks"},
    {.kind = Kind::kJoin, .name = "join", .upper_name = "JOIN"},
}};

constexpr const Collective& collective_of(Kind kind) {
  return kCollectives[static_cast<std::size_t>(kind)];
}

consteval bool is_ordered_by_kind() {
  for (std::size_t i = 0; i < kCollectives.size(); ++i) {
    if (kCollectives[i].kind != static_cast<Kind>(i)) return false;
  }
  return true;
}
static_assert(is_ordered_by_kind());

constexpr bool is_reduction(Kind kind) { return collective_of(kind).is_reduction; }
constexpr bool rows_may_differ(Kind kind) {
  return collective_of(kind).row_counts != RowCounts::kNone;
}
constexpr const char* name_of(Kind kind) { return collective_of(kind).name; }
constexpr const char* upper_name_of(Kind kind) { return collective_of(kind).upper_name; }

}  // namespace hvd
