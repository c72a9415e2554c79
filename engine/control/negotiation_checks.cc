// Checks messages of other hosts against this table before they change it. All ranks here and below
// must have submitted the names of a decision, with the same requests.
#include <algorithm>
#include <string>

#include "control/negotiation_table.h"
#include "control/negotiation_words.h"
#include "core/error.h"

namespace hvd {

// An id may stand only for a request that is the same in every round.
void NegotiationTable::check_repeatable(std::uint32_t index, const char* message) const {
  const Slot& slot = slots_[index];
  const Kind kind = slot.rounds[slot.round & 1].request.kind;
  if (kind != Kind::kJoin && !rows_may_differ(kind)) return;
  refuse(message, "ids", "the id " + std::to_string(slot.wire_id) + " of a " + name_of(kind),
         "ids of operations that are the same in every round");
}

void NegotiationTable::check_repeated(std::uint32_t index) const {
  const Slot& slot = slots_[index];
  if (slot.arrived_count != collected_count() || slot.has_error[(slot.round + 1) & 1]) {
    refuse("bucket", "ids",
           "the id " + std::to_string(slot.wire_id) + " of an operation that " +
               std::to_string(slot.arrived_count) + " ranks here have submitted",
           "one that all " + std::to_string(collected_count()) + " have submitted alike");
  }
  check_repeatable(index, "bucket");
}

void NegotiationTable::check_decision(const Decision& decision) const {
  const std::optional<std::uint32_t> found = slots_.find(decision.key);
  const std::uint32_t round = found ? slots_[*found].round + 1 : 0;
  for (const int rank : config_.collected) {
    if (found && has_arrived(slots_[*found], rank, round)) continue;
    if (decision.has_absent && has_joined(rank)) continue;
    refuse("bucket", "key",
           "a name that rank " + std::to_string(world_rank(rank)) + " has not submitted",
           "names that all ranks have submitted");
  }
  if (!found || slots_[*found].arrived_count == 0 || !decision.error.empty()) return;
  const Slot& slot = slots_[*found];
  const std::uint32_t parity = round & 1;
  if (slot.has_error[parity]) refuse("bucket", "error", "none", slot.rounds[parity].error);
  if (!is_alike(slot, parity, decision.signature, decision.requests)) {
    refuse("bucket", "signature", std::to_string(decision.signature),
           std::to_string(slot.signature[parity]) + ", which ranks here have submitted");
  }
  check_own_rows(*found, parity, decision);
}

// Compares signatures. It also compares the numbers of slots and rows, which must be right even if
// two signatures collide.
bool NegotiationTable::is_alike(const Slot& slot, std::uint32_t parity, std::uint64_t signature,
                                std::span<const Request> requests) const {
  return slot.signature[parity] == signature && slot.tensors[parity] == requests.size() &&
         slot.rounds[parity].request.kind == requests.front().kind;
}

// The rows of ranks here and below are known from their tensors.
void NegotiationTable::check_own_rows(std::uint32_t index, std::uint32_t parity,
                                      const Decision& decision) const {
  if (decision.rows.empty()) return;
  std::vector<std::int64_t> known;
  read_rows(index, parity, all_ranks_, known);
  const auto size = static_cast<std::size_t>(config_.size);
  const bool has_splits = collective_of(decision.requests.front().kind).has_splits();
  for (std::size_t i = 0; i < known.size(); ++i) {
    const int rank = static_cast<int>(has_splits ? i / size : i % size);
    const bool is_here = std::ranges::binary_search(config_.collected, rank);
    if (!is_here || known[i] == decision.rows[i]) continue;
    if (!has_arrived(slots_[index], rank, slots_[index].round + 1)) continue;
    refuse("bucket", "rows", std::to_string(decision.rows[i]),
           std::to_string(known[i]) + ", which rank " + std::to_string(world_rank(rank)) +
               " has submitted");
  }
}

// The items that follow those of the last bucket run as one collective. Only GPUs launch it.
void NegotiationTable::check_bucket(std::uint32_t count, bool is_numbered) const {
  const std::uint32_t begin = header_->bucketed.load(std::memory_order_relaxed);
  const FusionItem first = fusion_item(items_[begin % kRing]);
  if (is_numbered && (config_.launches == nullptr || first.memory == Memory::kHost)) {
    refuse("numbered bucket", "items", std::string("operations in ") + name_of(first.memory),
           "operations on GPUs");
  }
  for (std::uint32_t i = 1; i < count; ++i) {
    if (may_share(first, fusion_item(items_[(begin + i) % kRing]))) continue;
    refuse("bucket", "items", "operations that cannot run as one", "operations of one kind");
  }
}

}  // namespace hvd
