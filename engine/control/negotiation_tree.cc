// The messages between tables of different hosts: arrivals go up, decisions come down.
#include <algorithm>

#include "control/negotiation_table.h"
#include "control/negotiation_words.h"

namespace hvd {

namespace {

// Bytes of an arrival's tensors, summed over its ranks.
std::size_t moved_bytes(const Arrivals& arrival) {
  const Kind kind = arrival.requests.front().kind;
  if (!rows_may_differ(kind)) return total_bytes(arrival.requests);
  std::size_t bytes = 0;
  const std::size_t rows_each = arrival.rows.size() / arrival.requests.size();
  for (std::size_t i = 0; i < arrival.rows.size(); ++i) {
    const Request& request = arrival.requests[i / rows_each];
    bytes +=
        static_cast<std::size_t>(arrival.rows[i]) * request.row_count() * size_of(request.dtype);
  }
  return bytes;
}

}  // namespace

void NegotiationTable::push_outgoing(std::uint32_t index) {
  if (slots_[index].is_outgoing) return;
  slots_[index].is_outgoing = true;
  const std::uint32_t tail = header_->outbox_tail.load(std::memory_order_relaxed);
  outbox_[tail % kRing] = index;
  header_->outbox_tail.store(tail + 1, std::memory_order_seq_cst);
}

bool NegotiationTable::has_outgoing() const {
  return header_->outbox_tail.load(std::memory_order_seq_cst) !=
         header_->outbox_head.load(std::memory_order_seq_cst);
}

std::optional<std::uint32_t> NegotiationTable::next_outgoing() {
  if (!has_outgoing()) return std::nullopt;
  const std::uint32_t head = header_->outbox_head.load(std::memory_order_relaxed);
  const std::uint32_t index = outbox_[head % kRing];
  header_->outbox_head.store(head + 1, std::memory_order_seq_cst);
  Slot& slot = slots_[index];
  const Request& request = slot.rounds[(slot.round + 1) & 1].request;
  if (request.kind == Kind::kJoin) slot.is_outgoing = false;  // each rank's goes up at once
  return index;
}

bool NegotiationTable::is_repeated(std::uint32_t index) const {
  Slot& slot = slots_[index];
  const std::uint32_t parity = (slot.round + 1) & 1;
  const Kind kind = slot.rounds[parity].request.kind;
  return slot.wire_id != 0 && !slot.has_error[0] && !slot.has_error[1] &&
         !slot.is_spelled[parity] && slot.signature[0] == slot.signature[1] &&
         slot.arrived_count == collected_count() && kind != Kind::kJoin && !rows_may_differ(kind);
}

std::optional<Arrivals> NegotiationTable::arrival_of(std::uint32_t index) const {
  Slot& slot = slots_[index];
  if (slot.arrived_count == 0) return std::nullopt;
  const std::uint32_t parity = (slot.round + 1) & 1;
  Arrivals arrival;
  arrival.key = slot.key;
  arrival.signature = slot.signature[parity];
  read_requests(index, parity, arrival.requests);
  arrival.requests.front().rank = world_rank(slot.first_rank[parity]);
  for (const int rank : config_.collected) {
    if (has_arrived(slot, rank, slot.round + 1)) arrival.ranks.push_back(rank);
  }
  // The first rank is the one that sent these requests.
  const auto first = std::ranges::find(arrival.ranks, slot.first_rank[parity]);
  if (first != arrival.ranks.end()) std::iter_swap(first, arrival.ranks.begin());
  read_rows(index, parity, arrival.ranks, arrival.rows);
  if (slot.has_error[parity]) arrival.error = slot.rounds[parity].error;
  return arrival;
}

bool NegotiationTable::is_partial(std::uint32_t index) const {
  const Slot& slot = slots_[index];
  const Kind kind = slot.rounds[(slot.round + 1) & 1].request.kind;
  return slot.arrived_count != 0 && !slot.is_outgoing && kind != Kind::kJoin;
}

bool NegotiationTable::merge(const Arrivals& arrival) {
  const std::uint32_t index = slots_.find_or_create(arrival.key);
  const Kind kind = arrival.requests.front().kind;
  prepare_slot(index, chain_length(arrival.requests));
  Slot& slot = slots_[index];
  const std::uint32_t parity = (slot.round + 1) & 1;
  std::vector<int> ranks = arrival.ranks;
  std::erase_if(ranks, [&](int rank) { return has_arrived(slot, rank, slot.round + 1); });
  if (ranks.empty()) return false;
  record(index, arrival.requests, arrival.signature, ranks.front(), moved_bytes(arrival));
  slot.is_spelled[parity] = true;
  if (!arrival.error.empty() && !slot.has_error[parity]) set_error(slot, parity, arrival.error);
  if (is_alike(slot, parity, arrival.signature, arrival.requests)) {
    write_rows(index, parity, arrival.ranks, arrival.rows);
  }
  for (const int rank : ranks) count_arrival(slot, rank);
  if (kind != Kind::kJoin) return collect(index);
  bool became_ready = false;
  for (const int rank : ranks) became_ready |= join(rank);
  return end_join(index, ranks.back()) || became_ready;
}

bool NegotiationTable::merge_repeated(std::uint32_t index, std::uint32_t wire_id,
                                      std::span<const int> ranks) {
  Slot& slot = slots_[index];
  if (wire_id == 0 || slot.wire_id != wire_id) return false;
  check_repeatable(index, "arrived ids");
  if (slot.is_resting) slots_.wake_up(index);
  std::vector<Request> requests;
  read_requests(index, slot.round & 1, requests);
  const std::uint64_t signature = slot.signature[slot.round & 1];
  record(index, requests, signature, ranks.front(), total_bytes(requests));
  for (const int rank : ranks) {
    if (!has_arrived(slot, rank, slot.round + 1)) count_arrival(slot, rank);
  }
  collect(index);
  return true;
}

std::vector<int> NegotiationTable::lacking_ranks(std::uint32_t index) const {
  Slot& slot = slots_[index];
  const auto is_here = [&](int rank) { return has_arrived(slot, rank, slot.round + 1); };
  std::vector<int> lacking;
  if (std::ranges::any_of(config_.local, is_here)) return lacking;
  for (const int rank : config_.collected) {
    if (!is_here(rank) && !has_joined(rank)) lacking.push_back(rank);
  }
  return lacking;
}

bool NegotiationTable::is_awaited_from(const NameKey& key, std::span<const int> ranks) const {
  const std::optional<std::uint32_t> index = slots_.find(key);
  if (!index) return false;
  Slot& slot = slots_[*index];
  return std::ranges::any_of(config_.collected, [&](int rank) {
    return has_arrived(slot, rank, slot.round + 1) && !std::ranges::binary_search(ranks, rank);
  });
}

bool NegotiationTable::has_unannounced() const {
  return header_->bucket_tail.load(std::memory_order_seq_cst) !=
         header_->announced.load(std::memory_order_seq_cst);
}

std::uint32_t NegotiationTable::next_unannounced() const {
  return header_->announced.load(std::memory_order_relaxed);
}

void NegotiationTable::announced() { header_->announced.fetch_add(1, std::memory_order_seq_cst); }

bool NegotiationTable::is_repeated(const BucketItem& item) const {
  const Slot& slot = slots_[item.slot];
  const Kind kind = slot.rounds[item.parity].request.kind;
  return slot.wire_id != 0 && !slot.has_error[item.parity] && !slot.has_absent[item.parity] &&
         !slot.is_spelled[item.parity] && kind != Kind::kJoin && !rows_may_differ(kind);
}

Decision NegotiationTable::decision_of(const BucketItem& item) const {
  Slot& slot = slots_[item.slot];
  Decision decision;
  decision.key = slot.key;
  decision.wire_id = slot.wire_id;
  decision.signature = slot.signature[item.parity];
  decision.has_absent = slot.has_absent[item.parity];
  read_requests(item.slot, item.parity, decision.requests);
  if (slot.has_error[item.parity]) {
    decision.error = slot.rounds[item.parity].error;
  } else {
    read_rows(item.slot, item.parity, all_ranks_, decision.rows);
  }
  return decision;
}

std::uint32_t NegotiationTable::append(const Decision& decision) {
  check_decision(decision);
  const std::uint32_t index = slots_.find_or_create(decision.key);
  const Kind kind = decision.requests.front().kind;
  prepare_slot(index, chain_length(decision.requests));
  Slot& slot = slots_[index];
  slot.wire_id = decision.wire_id;
  const std::uint32_t parity = begin_decided(index);
  store_requests(index, parity, decision.requests);
  slot.signature[parity] = decision.signature;
  slot.tensors[parity] = static_cast<std::uint32_t>(decision.requests.size());
  slot.has_absent[parity] = decision.has_absent;
  if (!decision.error.empty()) {
    set_error(slot, parity, decision.error);
  } else {
    slot.has_error[parity] = false;
    write_rows(index, parity, all_ranks_, decision.rows);
  }
  if (kind == Kind::kJoin) clear_joined();
  return index;
}

void NegotiationTable::append_repeated(std::uint32_t index) {
  check_repeated(index);
  if (slots_[index].is_resting) slots_.wake_up(index);
  const std::uint32_t parity = begin_decided(index);
  slots_[index].has_absent[parity] = slots_[index].has_error[parity] = false;
}

// The next round is decided. It becomes an item of the next bucket.
std::uint32_t NegotiationTable::begin_decided(std::uint32_t index) {
  Slot& slot = slots_[index];
  ++slot.round;
  ++slot.unfinished;
  slot.arrived_count = 0;
  slot.is_outgoing = false;
  const std::uint32_t parity = slot.round & 1;
  push_item(index | (parity != 0 ? kParityBit : 0));
  return parity;
}

std::uint32_t NegotiationTable::close_bucket(std::uint32_t count, const BucketTuning& tuning,
                                             bool is_numbered) {
  check_bucket(count, is_numbered);
  return add_bucket(header_->bucketed.load(std::memory_order_relaxed), count, tuning, is_numbered);
}

void NegotiationTable::read_requests(std::uint32_t index, std::uint32_t parity,
                                     std::vector<Request>& requests) const {
  requests.clear();
  const std::uint32_t count = slots_[index].tensors[parity];
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i != 0) index = next_in_chain(index);
    requests.push_back(slots_[index].rounds[parity].request);
  }
}

std::size_t NegotiationTable::chain_length(std::span<const Request> requests) const {
  return collective_of(requests.front().kind).has_splits() ? all_ranks_.size() : requests.size();
}

// Calls use(rows of a tensor or of a rank's splits, how many) in the order of messages.
template <typename Use>
void NegotiationTable::for_each_rows(std::uint32_t index, std::uint32_t parity,
                                     std::span<const int> ranks, Use&& use) const {
  const Slot& head = slots_[index];
  const RowCounts row_counts = collective_of(head.rounds[parity].request.kind).row_counts;
  if (row_counts == RowCounts::kNone) return;
  std::vector<std::uint32_t> chain{index};
  const bool has_splits = row_counts == RowCounts::kPerPair;
  const std::size_t length = has_splits ? all_ranks_.size() : std::size_t{head.tensors[parity]};
  while (chain.size() < length) chain.push_back(next_in_chain(chain.back()));
  if (has_splits) {
    for (const int rank : ranks) {
      use(slots_.rows(slots_[chain[static_cast<std::size_t>(rank)]], parity), config_.size);
    }
    return;
  }
  for (const std::uint32_t tensor : chain) {
    for (const int rank : ranks) use(slots_.rows(slots_[tensor], parity) + rank, 1);
  }
}

void NegotiationTable::read_rows(std::uint32_t index, std::uint32_t parity,
                                 std::span<const int> ranks,
                                 std::vector<std::int64_t>& rows) const {
  for_each_rows(index, parity, ranks, [&](const std::int64_t* counts, int count) {
    rows.insert(rows.end(), counts, counts + count);
  });
}

void NegotiationTable::write_rows(std::uint32_t index, std::uint32_t parity,
                                  std::span<const int> ranks, std::span<const std::int64_t> rows) {
  auto next = rows.begin();
  for_each_rows(index, parity, ranks, [&](std::int64_t* counts, int count) {
    std::copy_n(next, count, counts);
    next += count;
  });
}

}  // namespace hvd
