#include "control/slots.h"

#include <string>

#include "core/error.h"
#include "core/hash.h"

namespace hvd {

namespace {

constexpr std::uint32_t kHeads = kMaxSlots;
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kSlotsOffset = kHeaderBytes + kHeads * sizeof(std::uint32_t);

// After each slot: the rows of two rounds, and the arrivals of one.
std::size_t slot_stride(int size) {
  const std::size_t bytes = sizeof(Slot) + static_cast<std::size_t>(size) * (2 * 8 + 4);
  return (bytes + 63) / 64 * 64;
}

}  // namespace

struct SlotTable::Header {
  std::uint32_t used;
  std::uint32_t free_head;
  std::uint32_t oldest, newest;  // resting slots, least recently used first
  std::uint32_t resting_count;
};

NameKey key_of(std::string_view name) {
  return {.low = hash_bytes(name.data(), name.size(), 1),
          .high = hash_bytes(name.data(), name.size(), 2)};
}

std::size_t SlotTable::region_bytes(int size) {
  return kSlotsOffset + kMaxSlots * slot_stride(size);
}

SlotTable::SlotTable(std::byte* base, int size, std::uint32_t cache_capacity)
    : size_(size),
      cache_capacity_(cache_capacity),
      header_(reinterpret_cast<Header*>(base)),
      heads_(reinterpret_cast<std::uint32_t*>(base + kHeaderBytes)),
      slots_(base + kSlotsOffset) {}

Slot& SlotTable::operator[](std::uint32_t index) const {
  return *reinterpret_cast<Slot*>(slots_ + index * slot_stride(size_));
}

std::int64_t* SlotTable::rows(Slot& slot, std::uint32_t parity) const {
  return reinterpret_cast<std::int64_t*>(&slot + 1) + static_cast<std::size_t>(parity) * size_;
}

std::uint32_t* SlotTable::arrived_rounds(Slot& slot) const {
  return reinterpret_cast<std::uint32_t*>(rows(slot, 2));
}

std::uint32_t SlotTable::used() const { return header_->used; }

std::optional<std::uint32_t> SlotTable::find(const NameKey& key) const {
  for (std::uint32_t link = heads_[key.low % kHeads]; link != 0; link = (*this)[link - 1].next) {
    if ((*this)[link - 1].key == key) return link - 1;
  }
  return std::nullopt;
}

std::uint32_t SlotTable::find_or_create(const NameKey& key) {
  if (const auto found = find(key)) return *found;
  std::uint32_t& head = heads_[key.low % kHeads];
  const std::uint32_t index = new_slot();
  Slot& slot = (*this)[index];
  slot.key = key;
  slot.signature[0] = slot.signature[1] = 0;  // its chain holds no requests yet
  slot.wire_id = 0;
  slot.is_outgoing = false;
  slot.next = head;
  head = index + 1;
  return index;
}

void SlotTable::extend_chain(std::uint32_t head, std::size_t length) {
  if (length > kMaxSlots) {
    throw Error(ErrorCode::kInvalidArgument,
                "a group of " + std::to_string(length) + " tensors is too large; at most " +
                    std::to_string(kMaxSlots) + " can be in flight on a host");
  }
  std::uint32_t last = head;
  for (std::size_t i = 1; i < length; ++i) {
    if ((*this)[last].next_in_chain == 0) {
      const std::uint32_t index = new_slot();
      (*this)[last].next_in_chain = index + 1;
    }
    last = (*this)[last].next_in_chain - 1;
  }
}

std::uint32_t SlotTable::new_slot() {
  if (header_->free_head == 0 && header_->used == kMaxSlots && header_->oldest != 0) {
    forget_oldest();
  }
  if (header_->free_head != 0) {
    const std::uint32_t index = header_->free_head - 1;
    header_->free_head = (*this)[index].next;
    return index;
  }
  if (header_->used == kMaxSlots) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(kMaxSlots) +
                    " tensors are in flight on this host already; synchronize some first");
  }
  return header_->used++;
}

void SlotTable::forget(std::uint32_t index) {
  std::uint32_t* link = &heads_[(*this)[index].key.low % kHeads];
  while (*link != index + 1) link = &(*this)[*link - 1].next;
  *link = (*this)[index].next;
  for (std::uint32_t chained = index + 1; chained != 0;) {
    const std::uint32_t next = (*this)[chained - 1].next_in_chain;
    release(chained - 1);
    chained = next;
  }
}

void SlotTable::release(std::uint32_t index) {
  Slot& slot = (*this)[index];
  ++slot.generation;
  slot.wire_id = 0;
  slot.next_in_chain = 0;
  slot.next = header_->free_head;
  header_->free_head = index + 1;
}

void SlotTable::rest(std::uint32_t index) {
  Slot& slot = (*this)[index];
  slot.is_resting = true;
  slot.newer = 0;
  slot.older = header_->newest;
  (header_->newest != 0 ? (*this)[header_->newest - 1].newer : header_->oldest) = index + 1;
  header_->newest = index + 1;
  if (++header_->resting_count > cache_capacity_) forget_oldest();
}

void SlotTable::forget_oldest() {
  const std::uint32_t oldest = header_->oldest - 1;
  wake_up(oldest);
  forget(oldest);
}

void SlotTable::wake_up(std::uint32_t index) {
  Slot& slot = (*this)[index];
  slot.is_resting = false;
  (slot.older != 0 ? (*this)[slot.older - 1].newer : header_->oldest) = slot.newer;
  (slot.newer != 0 ? (*this)[slot.newer - 1].older : header_->newest) = slot.older;
  --header_->resting_count;
}

}  // namespace hvd
