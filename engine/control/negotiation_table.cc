#include "control/negotiation_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "control/negotiation_words.h"
#include "core/error.h"
#include "core/text.h"

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::vector<int> ranks_below(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

NegotiationConfig completed(NegotiationConfig config) {
  std::vector<int> all = ranks_below(config.size);
  if (config.local.empty()) config.local = all;
  if (config.collected.empty()) config.collected = std::move(all);
  return config;
}

}  // namespace

struct NegotiationTable::Offsets {
  std::size_t joined, items, buckets, outbox, slots, end;
};

NegotiationTable::Offsets NegotiationTable::offsets(int size) {
  Offsets at{};
  at.joined = round_up(sizeof(Header), 64);
  at.items = round_up(at.joined + sizeof(std::uint32_t) * static_cast<std::size_t>(size), kPage);
  at.buckets = at.items + kRing * sizeof(std::uint32_t);
  at.outbox = round_up(at.buckets + kRing * sizeof(Bucket), kPage);
  at.slots = round_up(at.outbox + kRing * sizeof(std::uint32_t), kPage);
  at.end = round_up(at.slots + SlotTable::region_bytes(size), kPage);
  return at;
}

std::size_t NegotiationTable::region_bytes(int size) { return offsets(size).end; }

NegotiationTable::NegotiationTable(std::byte* base, NegotiationConfig config)
    : config_(completed(std::move(config))),
      header_(reinterpret_cast<Header*>(base)),
      joined_(reinterpret_cast<std::uint32_t*>(base + offsets(config_.size).joined)),
      items_(reinterpret_cast<std::uint32_t*>(base + offsets(config_.size).items)),
      buckets_(reinterpret_cast<Bucket*>(base + offsets(config_.size).buckets)),
      outbox_(reinterpret_cast<std::uint32_t*>(base + offsets(config_.size).outbox)),
      slots_(base + offsets(config_.size).slots, config_.size, config_.cache_capacity),
      all_ranks_(ranks_below(config_.size)) {}

SharedLock NegotiationTable::lock() const {
  return SharedLock(header_->mutex, config_.rank, config_.check_holder);
}

bool NegotiationTable::arrive(const NameKey& key, std::span<const Request> requests,
                              std::span<const std::int64_t> splits, std::uint64_t signature,
                              SlotRef& ref, const std::string& objection) {
  const Kind kind = requests.front().kind;
  if (has_joined(config_.rank) && kind != Kind::kJoin) {
    throw Error(ErrorCode::kInvalidArgument,
                "this rank has joined and takes part in everything until all ranks have; submit "
                "after join() has returned");
  }
  if (ref.slot == SlotRef::kNone || slots_[ref.slot].generation != ref.generation) {
    ref.slot = slots_.find_or_create(key);
    ref.generation = slots_[ref.slot].generation;
  }
  prepare_slot(ref.slot, std::max(requests.size(), splits.size()));
  Slot& slot = slots_[ref.slot];
  record(ref.slot, requests, signature, config_.rank, total_bytes(requests));
  const std::uint32_t parity = (slot.round + 1) & 1;
  if (!objection.empty() && !slot.has_error[parity]) set_error(slot, parity, objection);
  if (rows_may_differ(kind)) record_rows(ref.slot, requests, splits);
  count_arrival(slot, config_.rank);
  if (kind != Kind::kJoin) return collect(ref.slot);
  const bool became_ready = join(config_.rank);
  return end_join(ref.slot, config_.rank) || became_ready;
}

void NegotiationTable::prepare_slot(std::uint32_t index, std::size_t chain_length) {
  Slot& slot = slots_[index];
  if (slot.is_resting) slots_.wake_up(index);
  try {
    slots_.extend_chain(index, chain_length);
  } catch (const Error&) {
    if (slot.arrived_count == 0 && slot.unfinished == 0) slots_.rest(index);
    throw;
  }
}

void NegotiationTable::count_arrival(Slot& slot, int rank) {
  slots_.arrived_rounds(slot)[rank] = slot.round + 1;
  ++slot.arrived_count;
}

// A complete item is ready at the root, and goes up elsewhere.
bool NegotiationTable::collect(std::uint32_t index) {
  if (!is_complete(slots_[index])) return false;
  config_.is_root ? make_ready(index) : push_outgoing(index);
  return true;
}

void NegotiationTable::record(std::uint32_t index, std::span<const Request> requests,
                              std::uint64_t signature, int rank, std::size_t size_bytes) {
  Slot& slot = slots_[index];
  const std::uint32_t parity = (slot.round + 1) & 1;
  const bool is_same = slot.signature[parity] == signature;
  if (slot.arrived_count == 0) {
    // With splits, only the request has the number of rows, and the signature does not cover it.
    if (!is_same || collective_of(requests.front().kind).has_splits()) {
      store_requests(index, parity, requests);
    }
    slot.signature[parity] = signature;
    slot.first_rank[parity] = rank;
    slot.tensors[parity] = static_cast<std::uint32_t>(requests.size());
    slot.size_bytes[parity] = size_bytes;
    slot.has_error[parity] = slot.has_absent[parity] = slot.is_spelled[parity] = false;
    for (const Request& request : requests) {
      if (const auto text = scalar_failure(request)) set_error(slot, parity, *text);
    }
    return;
  }
  if (rows_may_differ(requests.front().kind)) slot.size_bytes[parity] += size_bytes;
  if (is_same || slot.has_error[parity]) return;
  const auto text = disagreement(slot, requests, rank);
  set_error(slot, parity, text.value_or("ranks sent different requests"));
}

void NegotiationTable::store_requests(std::uint32_t index, std::uint32_t parity,
                                      std::span<const Request> requests) {
  for (const Request& request : requests) {
    slots_[index].rounds[parity].request = request;
    index = next_in_chain(index);
  }
}

std::optional<std::string> NegotiationTable::disagreement(Slot& slot,
                                                          std::span<const Request> requests,
                                                          int rank) const {
  const std::uint32_t parity = (slot.round + 1) & 1;
  const int first_rank = slot.first_rank[parity];
  if (slot.tensors[parity] != requests.size()) {
    return group_mismatch(world_rank(first_rank), slot.tensors[parity], world_rank(rank),
                          requests.size());
  }
  Slot* tensor = &slot;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request first = tensor->rounds[parity].request;
    first.rank = world_rank(first_rank);
    if (collective_of(first.kind).row_counts == RowCounts::kPerRank && first.dims_count > 0) {
      first.dims[0] = slots_.rows(*tensor, parity)[first_rank];
    }
    if (auto text = mismatch(first, requests[i])) {
      if (requests.size() == 1) return text;
      return place_text(i, requests.size()) + ": " + *text;
    }
    if (i + 1 < requests.size()) tensor = &slots_[tensor->next_in_chain - 1];
  }
  return std::nullopt;
}

void NegotiationTable::record_rows(std::uint32_t index, std::span<const Request> requests,
                                   std::span<const std::int64_t> splits) {
  const std::uint32_t parity = (slots_[index].round + 1) & 1;
  if (collective_of(requests.front().kind).has_splits()) {
    for (int rank = 0; rank < config_.rank; ++rank) index = next_in_chain(index);
    std::ranges::copy(splits, slots_.rows(slots_[index], parity));
    return;
  }
  for (const Request& request : requests) {
    slots_.rows(slots_[index], parity)[config_.rank] = request.dims[0];
    index = next_in_chain(index);
  }
}

void NegotiationTable::set_error(Slot& slot, std::uint32_t parity, const std::string& text) const {
  slot.has_error[parity] = true;
  copy_text(slot.rounds[parity].error, text);
}

bool NegotiationTable::is_complete(Slot& slot) const {
  if (slot.arrived_count == collected_count()) return true;
  if (header_->joined_count == 0) return false;
  return std::ranges::all_of(config_.collected, [&](int rank) {
    return has_joined(rank) || has_arrived(slot, rank, slot.round + 1);
  });
}

void NegotiationTable::make_ready(std::uint32_t index) {
  Slot& slot = slots_[index];
  ++slot.round;
  ++slot.unfinished;
  const std::uint32_t parity = slot.round & 1;
  if (slot.arrived_count < static_cast<std::uint32_t>(config_.size)) mark_absent(index, parity);
  slot.arrived_count = 0;
  const std::uint32_t item = index | (parity != 0 ? kParityBit : 0);
  header_->ready_bytes.fetch_add(fusion_item(item).size_bytes, std::memory_order_relaxed);
  push_item(item);
}

void NegotiationTable::push_item(std::uint32_t item) {
  const std::uint32_t tail = header_->ready_tail.load(std::memory_order_relaxed);
  items_[tail % kRing] = item;
  header_->ready_tail.store(tail + 1, std::memory_order_release);
}

// Ranks that have joined give no rows, and cannot be a root.
void NegotiationTable::mark_absent(std::uint32_t index, std::uint32_t parity) {
  Slot& slot = slots_[index];
  const Request& request = slot.rounds[parity].request;
  const Collective& collective = collective_of(request.kind);
  slot.has_absent[parity] = true;
  for (int rank = 0; rank < config_.size; ++rank) {
    if (has_arrived(slot, rank, slot.round)) continue;
    if (collective.absent_rank == AbsentRank::kGivesNothing && request.root == world_rank(rank)) {
      set_error(slot, parity,
                std::string(collective.upper_name) +
                    " is not supported with Join when its root has joined: rank " +
                    std::to_string(request.root) + " is the root and sends nothing any more");
    }
    if (collective.absent_rank != AbsentRank::kGivesNoRows) continue;
    const std::size_t count =
        collective.has_splits() ? all_ranks_.size() : std::size_t{slot.tensors[parity]};
    write_rows(index, parity, {&rank, 1}, std::vector<std::int64_t>(count, 0));
  }
}

// The rank counts as arrived from now on. Items that waited only for it are complete.
bool NegotiationTable::join(int rank) {
  joined_[rank] = 1;
  ++header_->joined_count;
  bool became_ready = false;
  for (std::uint32_t index = 0; index < slots_.used(); ++index) {
    Slot& slot = slots_[index];
    if (slot.arrived_count == 0) continue;
    if (slot.rounds[(slot.round + 1) & 1].request.kind == Kind::kJoin) continue;
    became_ready |= collect(index);
  }
  return became_ready;
}

// After the last rank's arrival the join is ready too, and no rank is joined any more.
bool NegotiationTable::end_join(std::uint32_t index, int last) {
  Slot& slot = slots_[index];
  if (!config_.is_root) {
    push_outgoing(index);  // the tables above count its ranks as arrived from now on, too
    return true;
  }
  if (slot.arrived_count < static_cast<std::uint32_t>(config_.size)) return false;
  slot.rounds[(slot.round + 1) & 1].request.root = last;
  clear_joined();
  make_ready(index);
  return true;
}

void NegotiationTable::clear_joined() {
  header_->joined_count = 0;
  std::fill_n(joined_, config_.size, 0);
}

FusionItem NegotiationTable::fusion_item(std::uint32_t item) const {
  Slot& slot = slots_[item & ~kParityBit];
  const std::uint32_t parity = (item & kParityBit) != 0 ? 1 : 0;
  const Request& request = slot.rounds[parity].request;
  const Collective& collective = collective_of(request.kind);
  if (slot.has_error[parity] || !collective.has_tensors()) return {};
  return {.kind = request.kind,
          .is_adasum = collective.is_reduction && request.op == ReduceOp::kAdasum,
          .root = collective.has_root ? request.root : 0,
          .size_bytes = slot.size_bytes[parity],
          .is_alone = request.is_grouped && !config_.fuse_groups,
          .memory = request.memory};
}

bool NegotiationTable::form_bucket() {
  const std::uint32_t begin = header_->bucketed.load(std::memory_order_relaxed);
  const std::uint32_t available = header_->ready_tail.load(std::memory_order_relaxed) - begin;
  if (available == 0) return false;
  const Tuning& tuning = header_->is_tuned ? header_->tuning : config_.tuning;
  BucketPlan plan(tuning.fusion_threshold_bytes);
  std::uint32_t count = 0;
  std::uint64_t size_bytes = 0;
  for (; count < available; ++count) {
    const FusionItem item = fusion_item(items_[(begin + count) % kRing]);
    if (!plan.accepts(item)) break;
    size_bytes += item.size_bytes;
  }
  header_->ready_bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
  add_bucket(begin, count, tuning.bucket, must_number(items_[begin % kRing]));
  return true;
}

std::uint32_t NegotiationTable::add_bucket(std::uint32_t begin, std::uint32_t count,
                                           const BucketTuning& tuning, bool is_numbered) {
  const std::uint32_t index = header_->bucket_tail.load(std::memory_order_relaxed);
  if (is_numbered) header_->is_numbering.store(1, std::memory_order_seq_cst);
  Bucket& bucket = buckets_[index % kRing];
  bucket.begin = begin;
  bucket.count = count;
  bucket.finished = 0;
  bucket.tuning = tuning;
  bucket.launch.store(is_numbered ? new_launch() : 0, std::memory_order_relaxed);
  header_->bucket_tail.store(index + 1, std::memory_order_seq_cst);
  if (is_numbered) header_->is_numbering.store(0, std::memory_order_release);
  // After the tail: a thread that does not find the item among the ready ones finds its bucket.
  header_->bucketed.store(begin + count, std::memory_order_release);
  return index;
}

void NegotiationTable::tune(const Tuning& tuning) {
  header_->tuning = tuning;
  header_->is_tuned = true;
}

void NegotiationTable::finish_bucket(std::uint32_t index) {
  Bucket& bucket = buckets_[index % kRing];
  if (++bucket.finished < static_cast<std::uint32_t>(config_.local.size())) return;
  for (std::uint32_t i = 0; i < bucket.count; ++i) {
    const std::uint32_t index_of_slot = items_[(bucket.begin + i) % kRing] & ~kParityBit;
    Slot& slot = slots_[index_of_slot];
    if (--slot.unfinished == 0 && slot.arrived_count == 0) slots_.rest(index_of_slot);
  }
}

// A thread announces its sleep, then reads this. Sequential consistency keeps that order.
bool NegotiationTable::has_ready() const {
  return header_->ready_tail.load(std::memory_order_seq_cst) !=
         header_->bucketed.load(std::memory_order_seq_cst);
}

std::size_t NegotiationTable::ready_bytes() const {
  return header_->ready_bytes.load(std::memory_order_relaxed);
}

bool NegotiationTable::has_bucket(std::uint32_t index) const {
  return static_cast<std::int32_t>(header_->bucket_tail.load(std::memory_order_seq_cst) - index) >
         0;
}

void NegotiationTable::bucket_items(std::uint32_t index, std::vector<BucketItem>& items) const {
  const Bucket& bucket = buckets_[index % kRing];
  items.clear();
  for (std::uint32_t i = 0; i < bucket.count; ++i) {
    const std::uint32_t item = items_[(bucket.begin + i) % kRing];
    items.push_back({.slot = item & ~kParityBit, .parity = (item & kParityBit) != 0 ? 1U : 0U});
  }
}

BucketTuning NegotiationTable::tuning_of(std::uint32_t index) const {
  return buckets_[index % kRing].tuning;
}

std::vector<int> NegotiationTable::missing_ranks(const SlotRef& ref) const {
  std::vector<int> missing;
  if (ref.slot == SlotRef::kNone || slots_[ref.slot].generation != ref.generation) return missing;
  Slot& slot = slots_[ref.slot];
  if (!has_arrived(slot, config_.rank, slot.round + 1)) return missing;  // complete already
  for (const int rank : config_.collected) {
    if (!has_arrived(slot, rank, slot.round + 1) && !has_joined(rank)) missing.push_back(rank);
  }
  return missing;
}

bool NegotiationTable::is_awaited(const NameKey& key) const {
  const std::optional<std::uint32_t> index = slots_.find(key);
  if (!index) return false;
  Slot& slot = slots_[*index];
  return slot.arrived_count > 0 && !has_arrived(slot, config_.rank, slot.round + 1);
}

bool NegotiationTable::has_submitted(const NameKey& key) const {
  const std::optional<std::uint32_t> index = slots_.find(key);
  if (!index) return false;
  Slot& slot = slots_[*index];
  return has_arrived(slot, config_.rank, slot.round + 1);
}

bool NegotiationTable::has_arrived(Slot& slot, int rank, std::uint32_t round) const {
  return static_cast<std::int32_t>(slots_.arrived_rounds(slot)[rank] - round) >= 0;
}

std::uint32_t NegotiationTable::next_in_chain(std::uint32_t index) const {
  return slots_[index].next_in_chain - 1;
}

int NegotiationTable::world_rank(int rank) const {
  return config_.members.empty() ? rank : config_.members[static_cast<std::size_t>(rank)];
}

}  // namespace hvd
