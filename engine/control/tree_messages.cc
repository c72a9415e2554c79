#include "control/tree_messages.h"

#include <iterator>
#include <string>

#include "core/wire.h"

namespace hvd {

namespace {

struct Writer : WireWriter {
  explicit Writer(MessageKind kind) { put(kind); }
};

// Writes only the dimensions that the request has.
void put_request(Writer& writer, const Request& request) {
  writer.put(request.kind);
  writer.put(request.dtype);
  writer.put(request.op);
  writer.put(request.is_grouped);
  writer.put(request.numbering);
  writer.put(request.memory);
  writer.put(request.format);
  writer.put(request.root);
  writer.put(request.rank);
  writer.put(request.prescale);
  writer.put(request.postscale);
  writer.put(static_cast<std::uint8_t>(request.dims_count));
  writer.put_bytes(request.dims.data(), request.shape().size_bytes());
}

void put_requests(Writer& writer, std::span<const Request> requests) {
  writer.put_number(requests.size());
  for (const Request& request : requests) put_request(writer, request);
}

void put_text(Writer& writer, const std::string& text) {
  writer.put_list(std::span<const char>(text));
}

void put_decision(Writer& writer, const Decision& decision) {
  writer.put(decision.key);
  writer.put(decision.wire_id);
  put_requests(writer, decision.requests);
  writer.put(decision.signature);
  put_text(writer, decision.error);
  writer.put_list(std::span<const std::int64_t>(decision.rows));
  writer.put(decision.has_absent);
}

// Runs of ids that follow one another.
void put_runs(Writer& writer, std::span<const std::uint32_t> ids) {
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    writer.put_number(ids[i]);
    writer.put_number(end - i);
    i = end;
  }
}

void put_bits(Writer& writer, std::span<const std::uint32_t> ids) {
  std::vector<std::uint8_t> bits((ids.back() - ids.front()) / 8 + 1);
  for (const std::uint32_t id : ids) {
    const std::uint32_t bit = id - ids.front();
    bits[bit / 8] = static_cast<std::uint8_t>(bits[bit / 8] | 1U << bit % 8);
  }
  writer.put_number(ids.front());
  writer.put_bytes(bits.data(), bits.size());
}

}  // namespace

const char* name_of(MessageKind kind) {
  static constexpr const char* kNames[] = {"of a tree",
                                           "arrived ids",
                                           "arrival",
                                           "ids to spell",
                                           "bucket",
                                           "who lacks",
                                           "lacking ranks",
                                           "tuning",
                                           "name that may come",
                                           "awaited name",
                                           "order of launches",
                                           "numbered bucket",
                                           "proposed launch",
                                           "launch"};
  const auto number = static_cast<std::size_t>(kind);
  return kNames[number < std::size(kNames) ? number : 0];
}

void add_id(std::vector<BucketEntry>& entries, std::uint32_t id) {
  if (auto* run = entries.empty() ? nullptr : std::get_if<IdRun>(&entries.back())) {
    if (run->first + run->count == id) {
      ++run->count;
      return;
    }
  }
  entries.emplace_back(IdRun{.first = id, .count = 1});
}

MessageKind kind_of(std::span<const std::byte> message) {
  return message.empty() ? MessageKind{} : static_cast<MessageKind>(message.front());
}

Message write_ids(MessageKind kind, std::span<const std::uint32_t> ids) {
  Writer runs(kind);
  runs.put(IdForm::kRuns);
  put_runs(runs, ids);
  if (ids.empty() || runs.size() <= (ids.back() - ids.front()) / 8) return runs.take();
  Writer bits(kind);
  bits.put(IdForm::kBits);
  put_bits(bits, ids);
  return bits.size() < runs.size() ? bits.take() : runs.take();
}

Message write_arrival(const Arrivals& arrival) {
  Writer writer(MessageKind::kSpelled);
  writer.put(arrival.key);
  put_requests(writer, arrival.requests);
  writer.put(arrival.signature);
  writer.put_list(std::span<const int>(arrival.ranks));
  writer.put_list(std::span<const std::int64_t>(arrival.rows));
  put_text(writer, arrival.error);
  return writer.take();
}

Message write_bucket(MessageKind kind, std::span<const BucketEntry> entries) {
  Writer writer(kind);
  for (const BucketEntry& entry : entries) {
    if (const auto* decision = std::get_if<Decision>(&entry)) {
      writer.put(EntryForm::kDecision);
      put_decision(writer, *decision);
      continue;
    }
    const IdRun& run = std::get<IdRun>(entry);
    writer.put(EntryForm::kRun);
    writer.put_number(run.first);
    writer.put_number(run.count);
  }
  return writer.take();
}

Message write_tuning(const BucketTuning& tuning) {
  Writer writer(MessageKind::kTuning);
  writer.put(tuning.cycle_time_us);
  writer.put(tuning.cut.block_kib);
  writer.put(tuning.cut.small_kib);
  writer.put(tuning.cut.small_between_hosts_kib);
  writer.put(tuning.link_format);
  return writer.take();
}

Message write_lacking(MessageKind kind, const Lacking& lacking) {
  Writer writer(kind);
  writer.put(lacking.key);
  writer.put_list(std::span<const int>(lacking.ranks));
  return writer.take();
}

Message write_name(MessageKind kind, const NameKey& key) {
  Writer writer(kind);
  writer.put(key);
  return writer.take();
}

Message write_ordered() { return Writer(MessageKind::kOrdered).take(); }

Message write_launch(MessageKind kind, const LaunchNumber& launch) {
  Writer writer(kind);
  writer.put_number(launch.bucket);
  writer.put_number(launch.number);
  return writer.take();
}

}  // namespace hvd
