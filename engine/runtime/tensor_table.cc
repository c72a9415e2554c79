#include "runtime/tensor_table.h"

namespace hvd {

std::string title_of(std::string_view name, const Request& request) {
  if (is_numbered_name(name)) return std::string(name);
  // Names may carry "<operation>." in front; messages say the operation once.
  const std::string operation = name_of(request);
  if (name.starts_with(operation + ".")) name.remove_prefix(operation.size() + 1);
  return operation + " '" + std::string(name) + "'";
}

std::size_t Entry::size_bytes() const {
  std::size_t bytes = 0;
  for (const Request& request : requests) bytes += request.size_bytes();
  return bytes;
}

std::string Entry::title() const { return title_of(name, request()); }

Entry& TensorTable::find_or_create(std::string_view name, std::string_view matched) {
  const NameKey key = key_of(matched);
  std::unique_ptr<Entry>& entry = by_key_[key];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->name = name;
    entry->key = key;
  }
  return *entry;
}

void TensorTable::bind_slot(Entry& entry) {
  const std::uint32_t slot = entry.ref.slot;
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 1, nullptr);
  Entry* previous = by_slot_[slot];
  if (previous == &entry) return;
  if (entry.bound_slot != SlotRef::kNone) by_slot_[entry.bound_slot] = nullptr;
  entry.bound_slot = slot;
  by_slot_[slot] = &entry;
  if (previous == nullptr) return;
  previous->ref = {};
  previous->bound_slot = SlotRef::kNone;
  if (!previous->is_in_flight && !previous->is_submitting) by_key_.erase(previous->key);
}

void TensorTable::begin(Entry& entry) {
  entry.is_in_flight = true;
  entry.stall_reported = false;
  entry.has_told_arrivals = false;
  entry.in_flight_index = in_flight_.size();
  in_flight_.push_back(&entry);
}

void TensorTable::end(Entry& entry) {
  entry.is_in_flight = false;
  Entry* last = in_flight_.back();
  in_flight_[entry.in_flight_index] = last;
  last->in_flight_index = entry.in_flight_index;
  in_flight_.pop_back();
}

}  // namespace hvd
