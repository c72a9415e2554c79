#include "control/alarms.h"

#include "core/text.h"

namespace hvd {

struct Alarms::Words {
  SharedWord count;
  SharedWord claimed;
  SharedWord is_set;
  SharedWord first_departure;  // rank + 1
  std::int32_t code;
  std::int32_t rank;
  char text[Alarms::kMostTextBytes + 1];
  char operation[Alarms::kMostOperationBytes + 1];
};

namespace {

constexpr std::size_t kBits = 32;

std::size_t words_for(int size) { return (static_cast<std::size_t>(size) + kBits - 1) / kBits; }

}  // namespace

std::size_t Alarms::region_bytes(int size) {
  return sizeof(Words) + words_for(size) * sizeof(std::uint32_t);
}

Alarms::Alarms(std::byte* base, int size)
    : words_(reinterpret_cast<Words*>(base)),
      rank_bits_(reinterpret_cast<std::uint32_t*>(base + sizeof(Words)), words_for(size)) {}

std::uint32_t Alarms::count() const { return words_->count.load(std::memory_order_seq_cst); }

void Alarms::touch() { words_->count.fetch_add(1, std::memory_order_acq_rel); }

void Alarms::raise(const Alarm& alarm) {
  if (words_->claimed.exchange(1, std::memory_order_acq_rel) == 0) {
    words_->code = static_cast<std::int32_t>(alarm.code);
    words_->rank = alarm.rank;
    copy_text(words_->text, alarm.text);
    copy_text(words_->operation, alarm.operation);
    for (const int rank : alarm.ranks) {
      const auto bit = static_cast<std::size_t>(rank);
      rank_bits_[bit / kBits] |= 1U << (bit % kBits);
    }
    words_->is_set.store(1, std::memory_order_release);
  }
  touch();
}

std::optional<Alarm> Alarms::first() const {
  if (words_->is_set.load(std::memory_order_acquire) == 0) return std::nullopt;
  return Alarm{.code = static_cast<ErrorCode>(words_->code),
               .rank = words_->rank,
               .text = words_->text,
               .ranks = ranks(),
               .operation = words_->operation};
}

std::vector<int> Alarms::ranks() const {
  std::vector<int> ranks;
  for (std::size_t bit = 0; bit < rank_bits_.size() * kBits; ++bit) {
    if ((rank_bits_[bit / kBits] >> (bit % kBits) & 1U) != 0)
      ranks.push_back(static_cast<int>(bit));
  }
  return ranks;
}

void Alarms::note_departure(int rank) {
  std::uint32_t none = 0;
  words_->first_departure.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
}

std::optional<int> Alarms::first_departure() const {
  const std::uint32_t link = words_->first_departure.load(std::memory_order_acquire);
  if (link == 0) return std::nullopt;
  return static_cast<int>(link) - 1;
}

}  // namespace hvd
