#include "control/board.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/hash.h"

namespace hvd {

namespace {

constexpr std::uint32_t kHeads = kMaxSlots;
// Every slot may have two rounds under way, so rings of this length never overflow.
constexpr std::uint32_t kRing = 2 * kMaxSlots;
constexpr std::uint32_t kParityBit = 1U << 31;
constexpr std::size_t kErrorBytes = 512;
constexpr std::size_t kAlarmBytes = 1024;
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void copy_text(char* to, std::size_t capacity, const std::string& text) {
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace

// Links are slot + 1, 0 for none, so that zeroed memory is an empty board.
struct Board::Header {
  SharedMutex mutex;
  std::uint32_t slots_used;
  std::uint32_t free_head;
  std::uint32_t oldest, newest;  // resting slots, least recently used first
  std::uint32_t resting_count;
  alignas(64) SharedWord ready_tail;
  SharedWord bucketed;
  SharedWord bucket_tail;
  std::atomic<std::uint64_t> ready_bytes;
  alignas(64) SharedWord alarm_count;
  SharedWord alarm_claimed;
  SharedWord alarm_set;
  SharedWord first_departure;  // rank + 1
  std::int32_t alarm_code;
  std::int32_t alarm_rank;
  char alarm_text[kAlarmBytes];
};

// What a round needs beside the slot's first line; not written while a name repeats itself.
struct Board::Round {
  Request request;  // of the first rank to arrive that sent this signature
  char error[kErrorBytes];
};

// All that changes from round to round lies in one cache line: the ranks' cores pass it around.
struct alignas(64) Board::Slot {
  std::uint32_t generation;
  std::uint32_t round;          // rounds completed by arrival of all
  std::uint32_t arrived_count;  // in the round being collected
  std::uint32_t unfinished;     // rounds ready but not yet run by all ranks
  std::uint32_t older, newer;
  std::int32_t first_rank[2];  // that arrived in the round
  std::uint64_t signature[2];
  bool has_error[2];
  bool is_resting;
  // The second line: the name, and the links of names.
  alignas(64) NameKey key;
  std::uint32_t next;  // in the hash chain or the free list
  Round rounds[2];
};

struct Board::Bucket {
  std::uint32_t begin;  // first item
  std::uint32_t count;
  std::uint32_t finished;  // ranks that have run it
};

namespace {

struct Offsets {
  std::size_t heads, items, buckets, slots, end;
};

}  // namespace

static std::size_t slot_stride(std::size_t slot_bytes, int size) {
  return round_up(slot_bytes + static_cast<std::size_t>(size) * (2 * 8 + 4), 64);
}

static Offsets offsets(std::size_t header_bytes, std::size_t bucket_bytes, std::size_t stride) {
  Offsets at{};
  at.heads = round_up(header_bytes, kPage);
  at.items = at.heads + kHeads * sizeof(std::uint32_t);
  at.buckets = at.items + kRing * sizeof(std::uint32_t);
  at.slots = round_up(at.buckets + kRing * bucket_bytes, kPage);
  at.end = round_up(at.slots + kMaxSlots * stride, kPage);
  return at;
}

NameKey key_of(std::string_view name) {
  return {.low = hash_bytes(name.data(), name.size(), 1),
          .high = hash_bytes(name.data(), name.size(), 2)};
}

std::size_t Board::region_bytes(int size) {
  return offsets(sizeof(Header), sizeof(Bucket), slot_stride(sizeof(Slot), size)).end;
}

Board::Board(std::byte* base, const BoardConfig& config)
    : config_(config),
      header_(reinterpret_cast<Header*>(base)),
      heads_(reinterpret_cast<std::uint32_t*>(base +
                                              offsets(sizeof(Header), sizeof(Bucket), 64).heads)),
      items_(reinterpret_cast<std::uint32_t*>(base +
                                              offsets(sizeof(Header), sizeof(Bucket), 64).items)),
      buckets_(
          reinterpret_cast<Bucket*>(base + offsets(sizeof(Header), sizeof(Bucket), 64).buckets)),
      slots_(base + offsets(sizeof(Header), sizeof(Bucket), 64).slots) {}

SharedLock Board::lock() const {
  return SharedLock(header_->mutex, config_.rank, config_.check_holder);
}

bool Board::arrive(const NameKey& key, const Request& request, std::uint64_t signature,
                   SlotRef& ref) {
  if (ref.slot == SlotRef::kNone || slot(ref.slot).generation != ref.generation) {
    ref.slot = find_or_create(key);
    ref.generation = slot(ref.slot).generation;
  }
  Slot& slot = this->slot(ref.slot);
  if (slot.is_resting) wake_up(ref.slot);
  const std::uint32_t round = slot.round + 1;
  record(slot, round & 1, request, signature);
  arrived_rounds(slot)[config_.rank] = round;
  if (request.kind == Kind::kAllgather) rows(slot, round & 1)[config_.rank] = request.dims[0];
  if (++slot.arrived_count < static_cast<std::uint32_t>(config_.size)) return false;
  make_ready(ref.slot, slot);
  return true;
}

void Board::record(Slot& slot, std::uint32_t parity, const Request& request,
                   std::uint64_t signature) {
  Round& round = slot.rounds[parity];
  std::optional<std::string> error;
  if (slot.arrived_count == 0) {
    if (slot.signature[parity] != signature) round.request = request;
    slot.signature[parity] = signature;
    slot.first_rank[parity] = request.rank;
    slot.has_error[parity] = false;
    error = impossible(request);
  } else if (slot.signature[parity] != signature && !slot.has_error[parity]) {
    Request first = round.request;
    first.rank = slot.first_rank[parity];
    if (first.kind == Kind::kAllgather) first.dims[0] = rows(slot, parity)[first.rank];
    error = mismatch(first, request);
    if (!error) error = "ranks sent different requests";
  }
  if (!error) return;
  slot.has_error[parity] = true;
  copy_text(round.error, kErrorBytes, *error);
}

void Board::make_ready(std::uint32_t index, Slot& slot) {
  slot.arrived_count = 0;
  ++slot.round;
  ++slot.unfinished;
  const std::uint32_t tail = header_->ready_tail.load(std::memory_order_relaxed);
  const std::uint32_t item = index | ((slot.round & 1) != 0 ? kParityBit : 0);
  items_[tail % kRing] = item;
  header_->ready_bytes.fetch_add(fusion_item(item).size_bytes, std::memory_order_relaxed);
  header_->ready_tail.store(tail + 1, std::memory_order_release);
}

FusionItem Board::fusion_item(std::uint32_t item) const {
  Slot& slot = this->slot(item & ~kParityBit);
  const int parity = (item & kParityBit) != 0 ? 1 : 0;
  const Round& round = slot.rounds[parity];
  FusionItem result{.fusion_class = FusionClass::kNothing, .root = 0, .size_bytes = 0};
  if (slot.has_error[parity] || round.request.kind == Kind::kBarrier) return result;
  result.size_bytes = round.request.size_bytes();
  switch (round.request.kind) {
    case Kind::kAllreduce:
      result.fusion_class = FusionClass::kAllreduce;
      break;
    case Kind::kBroadcast:
      result.fusion_class = FusionClass::kBroadcast;
      result.root = round.request.root;
      break;
    case Kind::kAllgather:
      result.fusion_class = FusionClass::kAllgather;
      result.size_bytes = 0;
      for (int rank = 0; rank < config_.size; ++rank) {
        result.size_bytes += static_cast<std::size_t>(rows(slot, parity)[rank]);
      }
      result.size_bytes *= round.request.row_count() * size_of(round.request.dtype);
      break;
    case Kind::kBarrier:
    case Kind::kAlltoall:
    case Kind::kReducescatter:
      break;
  }
  return result;
}

bool Board::form_bucket() {
  const std::uint32_t begin = header_->bucketed.load(std::memory_order_relaxed);
  const std::uint32_t available = header_->ready_tail.load(std::memory_order_relaxed) - begin;
  if (available == 0) return false;
  BucketPlan plan(config_.fusion_threshold_bytes);
  std::uint32_t count = 0;
  std::uint64_t size_bytes = 0;
  for (; count < available; ++count) {
    const FusionItem item = fusion_item(items_[(begin + count) % kRing]);
    if (!plan.accepts(item)) break;
    size_bytes += item.size_bytes;
  }
  const std::uint32_t index = header_->bucket_tail.load(std::memory_order_relaxed);
  buckets_[index % kRing] = {.begin = begin, .count = count, .finished = 0};
  header_->ready_bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
  header_->bucket_tail.store(index + 1, std::memory_order_release);
  // After the tail: whoever sees an item gone from the ready ones sees the bucket it went to.
  header_->bucketed.store(begin + count, std::memory_order_release);
  return true;
}

void Board::finish_bucket(std::uint32_t index) {
  Bucket& bucket = buckets_[index % kRing];
  if (++bucket.finished < static_cast<std::uint32_t>(config_.size)) return;
  for (std::uint32_t i = 0; i < bucket.count; ++i) {
    const std::uint32_t index_of_slot = items_[(bucket.begin + i) % kRing] & ~kParityBit;
    Slot& slot = this->slot(index_of_slot);
    if (--slot.unfinished == 0 && slot.arrived_count == 0) rest(index_of_slot);
  }
}

// What a thread looks at after it has said that it is going to sleep must not be read before that:
// sequentially consistent, as the saying is.
bool Board::has_ready() const {
  return header_->ready_tail.load(std::memory_order_seq_cst) !=
         header_->bucketed.load(std::memory_order_seq_cst);
}

std::size_t Board::ready_bytes() const {
  return header_->ready_bytes.load(std::memory_order_relaxed);
}

bool Board::has_bucket(std::uint32_t index) const {
  return static_cast<std::int32_t>(header_->bucket_tail.load(std::memory_order_seq_cst) - index) >
         0;
}

void Board::bucket_items(std::uint32_t index, std::vector<BucketItem>& items) const {
  const Bucket& bucket = buckets_[index % kRing];
  items.clear();
  for (std::uint32_t i = 0; i < bucket.count; ++i) {
    const std::uint32_t item = items_[(bucket.begin + i) % kRing];
    items.push_back({.slot = item & ~kParityBit, .parity = (item & kParityBit) != 0 ? 1U : 0U});
  }
}

std::optional<std::string> Board::error_of(const BucketItem& item) const {
  const Slot& slot = this->slot(item.slot);
  if (!slot.has_error[item.parity]) return std::nullopt;
  return std::string(slot.rounds[item.parity].error);
}

std::int64_t Board::rows_of(const BucketItem& item, int rank) const {
  return rows(slot(item.slot), item.parity)[rank];
}

std::vector<int> Board::missing_ranks(const SlotRef& ref) const {
  std::vector<int> missing;
  if (ref.slot == SlotRef::kNone || slot(ref.slot).generation != ref.generation) return missing;
  Slot& slot = this->slot(ref.slot);
  if (arrived_rounds(slot)[config_.rank] != slot.round + 1) return missing;  // complete already
  for (int rank = 0; rank < config_.size; ++rank) {
    if (arrived_rounds(slot)[rank] != slot.round + 1) missing.push_back(rank);
  }
  return missing;
}

std::uint32_t Board::alarm_count() const {
  return header_->alarm_count.load(std::memory_order_seq_cst);
}

void Board::touch_alarm() { header_->alarm_count.fetch_add(1, std::memory_order_acq_rel); }

void Board::raise_alarm(const Alarm& alarm) {
  if (header_->alarm_claimed.exchange(1, std::memory_order_acq_rel) == 0) {
    header_->alarm_code = static_cast<std::int32_t>(alarm.code);
    header_->alarm_rank = alarm.rank;
    copy_text(header_->alarm_text, kAlarmBytes, alarm.text);
    header_->alarm_set.store(1, std::memory_order_release);
  }
  touch_alarm();
}

void Board::note_departure(int rank) {
  std::uint32_t none = 0;
  header_->first_departure.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
}

std::optional<int> Board::first_departure() const {
  const std::uint32_t link = header_->first_departure.load(std::memory_order_acquire);
  if (link == 0) return std::nullopt;
  return static_cast<int>(link) - 1;
}

std::optional<Alarm> Board::alarm() const {
  if (header_->alarm_set.load(std::memory_order_acquire) == 0) return std::nullopt;
  return Alarm{.code = static_cast<ErrorCode>(header_->alarm_code),
               .rank = header_->alarm_rank,
               .text = header_->alarm_text};
}

Board::Slot& Board::slot(std::uint32_t index) const {
  return *reinterpret_cast<Slot*>(slots_ + index * slot_stride(sizeof(Slot), config_.size));
}

std::int64_t* Board::rows(Slot& slot, std::uint32_t parity) const {
  return reinterpret_cast<std::int64_t*>(&slot + 1) + parity * config_.size;
}

std::uint32_t* Board::arrived_rounds(Slot& slot) const {
  return reinterpret_cast<std::uint32_t*>(rows(slot, 2));
}

std::uint32_t Board::find_or_create(const NameKey& key) {
  std::uint32_t& head = heads_[key.low % kHeads];
  for (std::uint32_t link = head; link != 0; link = slot(link - 1).next) {
    if (slot(link - 1).key == key) return link - 1;
  }
  const std::uint32_t index = new_slot();
  Slot& slot = this->slot(index);
  slot.key = key;
  slot.next = head;
  head = index + 1;
  return index;
}

std::uint32_t Board::new_slot() {
  if (header_->free_head == 0 && header_->slots_used == kMaxSlots && header_->oldest != 0) {
    forget_oldest();
  }
  if (header_->free_head != 0) {
    const std::uint32_t index = header_->free_head - 1;
    header_->free_head = slot(index).next;
    return index;
  }
  if (header_->slots_used == kMaxSlots) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(kMaxSlots) +
                    " tensors are in flight on this host already; synchronize some first");
  }
  return header_->slots_used++;
}

void Board::forget(std::uint32_t index) {
  Slot& slot = this->slot(index);
  std::uint32_t* link = &heads_[slot.key.low % kHeads];
  while (*link != index + 1) link = &this->slot(*link - 1).next;
  *link = slot.next;
  ++slot.generation;
  slot.next = header_->free_head;
  header_->free_head = index + 1;
}

void Board::rest(std::uint32_t index) {
  Slot& slot = this->slot(index);
  slot.is_resting = true;
  slot.newer = 0;
  slot.older = header_->newest;
  (header_->newest != 0 ? this->slot(header_->newest - 1).newer : header_->oldest) = index + 1;
  header_->newest = index + 1;
  if (++header_->resting_count <= config_.cache_capacity) return;
  forget_oldest();
}

void Board::forget_oldest() {
  const std::uint32_t oldest = header_->oldest - 1;
  wake_up(oldest);
  forget(oldest);
}

void Board::wake_up(std::uint32_t index) {
  Slot& slot = this->slot(index);
  slot.is_resting = false;
  (slot.older != 0 ? this->slot(slot.older - 1).newer : header_->oldest) = slot.newer;
  (slot.newer != 0 ? this->slot(slot.newer - 1).older : header_->newest) = slot.older;
  --header_->resting_count;
}

}  // namespace hvd
