// Reads the items of a bucket: errors, absent ranks, tensors, rows and splits.
#include "control/negotiation_table.h"

namespace hvd {

std::optional<std::string> NegotiationTable::error_of(const BucketItem& item) const {
  Slot& slot = slots_[item.slot];
  if (!slot.has_error[item.parity]) return std::nullopt;
  return std::string(slot.rounds[item.parity].error);
}

bool NegotiationTable::has_absent(const BucketItem& item) const {
  return slots_[item.slot].has_absent[item.parity];
}

bool NegotiationTable::is_absent(const BucketItem& item) const {
  if (!has_absent(item)) return false;
  const SharedLock held = lock();  // ranks may begin the next round meanwhile
  return !has_arrived(slots_[item.slot], config_.rank, round_of(item));
}

void NegotiationTable::tensors_of(const BucketItem& item, std::vector<BucketItem>& tensors) const {
  tensors.assign(1, item);
  for (std::uint32_t i = 1; i < slots_[item.slot].tensors[item.parity]; ++i) {
    tensors.push_back({.slot = next_in_chain(tensors.back().slot), .parity = item.parity});
  }
}

const Request& NegotiationTable::request_of(const BucketItem& item) const {
  return slots_[item.slot].rounds[item.parity].request;
}

std::int64_t NegotiationTable::rows_of(const BucketItem& item, int rank) const {
  return slots_.rows(slots_[item.slot], item.parity)[rank];
}

void NegotiationTable::splits_of(const BucketItem& item, std::vector<std::int64_t>& splits) const {
  splits.clear();
  std::uint32_t index = item.slot;
  for (int from = 0; from < config_.size; ++from) {
    const std::int64_t* rows = slots_.rows(slots_[index], item.parity);
    splits.insert(splits.end(), rows, rows + config_.size);
    index = next_in_chain(index);
  }
}

int NegotiationTable::last_of(const BucketItem& item) const { return request_of(item).root; }

// Rounds of a parity are two apart, and no more than two are under way.
std::uint32_t NegotiationTable::round_of(const BucketItem& item) const {
  const std::uint32_t newest = slots_[item.slot].round;
  return (newest & 1) == item.parity ? newest : newest - 1;
}

}  // namespace hvd
