#include "trace/recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(RecorderHeader) <= kPage);
constexpr std::size_t kLabelBytes =
    (Recorder::kLabels * sizeof(LabelCell) + kPage - 1) / kPage * kPage;

std::uint32_t ring_size(std::uint32_t events) {
  return events == 0 ? 0 : std::bit_ceil(std::clamp(events, 64U, Recorder::kMaxEvents));
}

}  // namespace

void Label::set_name(std::string_view whole) {
  if (whole.size() > kNameBytes) whole.remove_prefix(whole.size() - kNameBytes);
  name_length = static_cast<std::uint8_t>(whole.size());
  std::memcpy(name.data(), whole.data(), whole.size());
}

RecorderView::RecorderView(std::shared_ptr<Region> region)
    : region_(std::move(region)),
      header_(reinterpret_cast<RecorderHeader*>(region_->data())),
      labels_(reinterpret_cast<LabelCell*>(region_->data() + kPage)),
      cells_(reinterpret_cast<EventCell*>(region_->data() + kPage + kLabelBytes)) {}

RecorderView::Found RecorderView::read(std::uint64_t begin, bool patiently,
                                       std::vector<Event> memory) const {
  const std::uint64_t kept = capacity();
  Found found{.events = std::move(memory), .first = begin, .end = end(), .lost = 0};
  found.events.clear();
  if (kept == 0) return found;
  if (found.end - begin > kept) {
    found.lost = found.end - begin - kept;
    found.first = found.end - kept;
  }
  found.events.reserve(found.end - found.first);
  for (std::uint64_t number = found.first; number < found.end; ++number) {
    const EventCell& cell = cells_[number & (kept - 1)];
    const std::uint64_t index = cell.index.load(std::memory_order_acquire);
    const std::int64_t time_ns = cell.time_ns.load(std::memory_order_acquire);
    const std::uint64_t what = cell.what.load(std::memory_order_acquire);
    const std::uint64_t value = cell.value.load(std::memory_order_acquire);
    const bool is_whole =
        index == number + 1 && cell.index.load(std::memory_order_relaxed) == index;
    if (is_whole) {
      found.events.push_back({.time_ns = time_ns,
                              .kind = static_cast<EventKind>(what >> 56),
                              .detail = static_cast<std::uint8_t>(what >> 48),
                              .process_set = static_cast<std::uint16_t>(what >> 32),
                              .subject = static_cast<std::uint32_t>(what),
                              .value = value});
    } else if (index > number + 1) {
      ++found.lost;
    } else if (patiently) {
      found.end = number;
    }
  }
  return found;
}

std::vector<Event> RecorderView::last(std::uint64_t count) const {
  const std::uint64_t all = end();
  return read(all - std::min(all, count)).events;
}

std::optional<Label> RecorderView::label(std::uint32_t id) const {
  const LabelCell& cell = labels_[id % Recorder::kLabels];
  if (cell.index.load(std::memory_order_acquire) != std::uint64_t{id} + 1) return std::nullopt;
  LabelCell::Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = cell.words[i].load(std::memory_order_acquire);
  }
  if (cell.index.load(std::memory_order_relaxed) != std::uint64_t{id} + 1) return std::nullopt;
  return std::bit_cast<Label>(words);
}

std::size_t Recorder::region_bytes() {
  return kPage + kLabelBytes + kMaxEvents * sizeof(EventCell);
}

Recorder::Recorder(std::shared_ptr<Region> region, std::uint32_t events)
    : RecorderView(std::move(region)), mask_(std::max(1U, ring_size(events)) - 1) {
  header_->capacity.store(ring_size(events), std::memory_order_release);
}

std::uint32_t Recorder::add_label(const Label& label) {
  if (!is_on()) return kNoLabel;
  const std::uint32_t id = next_label_++;
  LabelCell& cell = labels_[id % kLabels];
  cell.index.store(0, std::memory_order_relaxed);
  const auto words = std::bit_cast<LabelCell::Words>(label);
  for (std::size_t i = 0; i < words.size(); ++i) {
    cell.words[i].store(words[i], std::memory_order_release);
  }
  cell.index.store(std::uint64_t{id} + 1, std::memory_order_release);
  header_->next_label.store(next_label_, std::memory_order_release);
  return id;
}

}  // namespace hvd
