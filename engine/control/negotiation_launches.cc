// The order in which the buckets of GPU tensors of all sets are launched: their numbers, which the
// tables of a host take from one counter.
#include "control/negotiation_table.h"
#include "control/negotiation_words.h"

namespace hvd {

namespace {

// Of a bucket's number: the hosts have not agreed yet. The final one is not lower.
constexpr std::uint64_t kProvisional = std::uint64_t{1} << 63;

}  // namespace

void NegotiationTable::order_launches() { header_->is_ordered.store(1, std::memory_order_seq_cst); }

bool NegotiationTable::orders_launches() const {
  return header_->is_ordered.load(std::memory_order_seq_cst) != 0;
}

bool NegotiationTable::is_one_host() const {
  return config_.local.size() == static_cast<std::size_t>(config_.size);
}

// Of a bucket that begins with `item`, on the root's table.
bool NegotiationTable::must_number(std::uint32_t item) const {
  return config_.launches != nullptr && (is_one_host() || orders_launches()) &&
         fusion_item(item).memory != Memory::kHost;
}

// The next one of this host.
std::uint64_t NegotiationTable::new_launch() {
  const std::uint64_t number = config_.launches->fetch_add(1) + 1;
  return is_one_host() ? number : number | kProvisional;
}

Launch NegotiationTable::launch_of(std::uint32_t index) const {
  const std::uint64_t word = buckets_[index % kRing].launch.load(std::memory_order_seq_cst);
  return {.number = word & ~kProvisional, .is_final = (word & kProvisional) == 0};
}

// The host's counter first: what is numbered here after a rank has seen the number gets a higher
// one.
void NegotiationTable::settle_launch(std::uint32_t index, std::uint64_t number) {
  std::uint64_t highest = config_.launches->load();
  while (highest < number && !config_.launches->compare_exchange_weak(highest, number)) {
  }
  buckets_[index % kRing].launch.store(number, std::memory_order_seq_cst);
}

// Who sees a number sees all earlier ones, or that they are being given. Final numbers of a set
// rise, since the proposals of each host do. So the first one decides.
bool NegotiationTable::has_earlier_launch(std::uint32_t from, std::uint64_t number) const {
  if (header_->is_numbering.load(std::memory_order_seq_cst) != 0) return true;
  const std::uint32_t end = header_->bucket_tail.load(std::memory_order_seq_cst);
  for (std::uint32_t index = from; index != end; ++index) {
    const std::uint64_t other = launch_of(index).number;
    if (other != 0) return other < number;
  }
  return false;
}

}  // namespace hvd
