#include "control/tree_messages.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "core/error.h"

namespace hvd {

namespace {

class Writer {
 public:
  explicit Writer(MessageKind kind) { put(kind); }

  template <typename Value>
  void put(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    put_bytes(&value, sizeof value);
  }
  // Seven bits a byte, low ones first: most numbers here are small.
  void put_number(std::uint64_t number) {
    for (; number >= 0x80; number >>= 7) put(static_cast<std::uint8_t>(number | 0x80));
    put(static_cast<std::uint8_t>(number));
  }
  template <typename Value>
  void put_list(std::span<const Value> values) {
    put_number(values.size());
    put_bytes(values.data(), values.size_bytes());
  }
  void put_bytes(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    message_.insert(message_.end(), bytes, bytes + size);
  }
  std::size_t size() const { return message_.size(); }
  Message take() { return std::move(message_); }

 private:
  Message message_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : rest_(message.subspan(1)) {}

  template <typename Value>
  Value get() {
    Value value{};
    get_bytes(&value, sizeof value);
    return value;
  }
  std::uint64_t get_number() {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = get<std::uint8_t>();
      number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
    throw broken();
  }
  template <typename Value>
  std::vector<Value> get_list() {
    const std::uint64_t count = get_number();
    if (count > rest_.size() / sizeof(Value)) throw broken();
    std::vector<Value> values(count);
    get_bytes(values.data(), count * sizeof(Value));
    return values;
  }
  bool is_empty() const { return rest_.empty(); }
  static Error broken() {
    return Error(ErrorCode::kInternal, "a message between hosts is cut off or malformed");
  }

 private:
  void get_bytes(void* to, std::size_t size) {
    if (size > rest_.size()) throw broken();
    if (size != 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }

  std::span<const std::byte> rest_;
};

// Without the dimensions that it does not have.
void put_request(Writer& writer, const Request& request) {
  writer.put_bytes(&request, offsetof(Request, dims));
  writer.put_bytes(request.dims.data(), request.shape().size_bytes());
}

Request get_request(Reader& reader) {
  struct Head {
    std::byte bytes[offsetof(Request, dims)];
  };
  Request request;
  const auto head = reader.get<Head>();
  std::memcpy(static_cast<void*>(&request), head.bytes, sizeof head.bytes);
  if (request.dims_count < 0 || request.dims_count > Request::kMaxDims) throw Reader::broken();
  for (int i = 0; i < request.dims_count; ++i) {
    request.dims[static_cast<std::size_t>(i)] = reader.get<std::int64_t>();
  }
  return request;
}

void put_requests(Writer& writer, std::span<const Request> requests) {
  writer.put_number(requests.size());
  for (const Request& request : requests) put_request(writer, request);
}

std::vector<Request> get_requests(Reader& reader) {
  std::vector<Request> requests;
  const std::uint64_t count = reader.get_number();
  if (count == 0 || count > kMaxSlots) throw Reader::broken();
  for (std::uint64_t i = 0; i < count; ++i) requests.push_back(get_request(reader));
  return requests;
}

void put_text(Writer& writer, const std::string& text) {
  writer.put_list(std::span<const char>(text));
}

std::string get_text(Reader& reader) {
  const std::vector<char> text = reader.get_list<char>();
  return {text.begin(), text.end()};
}

void put_decision(Writer& writer, const Decision& decision) {
  writer.put(decision.key);
  writer.put(decision.wire_id);
  put_requests(writer, decision.requests);
  writer.put(decision.signature);
  writer.put_list(std::span<const std::int64_t>(decision.rows));
  put_text(writer, decision.error);
  writer.put(decision.has_absent);
}

Decision get_decision(Reader& reader) {
  Decision decision;
  decision.key = reader.get<NameKey>();
  decision.wire_id = reader.get<std::uint32_t>();
  decision.requests = get_requests(reader);
  decision.signature = reader.get<std::uint64_t>();
  decision.rows = reader.get_list<std::int64_t>();
  decision.error = get_text(reader);
  decision.has_absent = reader.get<bool>();
  return decision;
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

enum class IdForm : std::uint8_t { kRuns, kBits };
enum class EntryForm : std::uint8_t { kRun, kDecision };

}  // namespace

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

std::vector<std::uint32_t> read_ids(std::span<const std::byte> message) {
  Reader reader(message);
  std::vector<std::uint32_t> ids;
  const auto form = reader.get<IdForm>();
  auto first = form == IdForm::kBits ? static_cast<std::uint32_t>(reader.get_number()) : 0U;
  while (!reader.is_empty()) {
    if (form == IdForm::kBits) {
      const auto bits = reader.get<std::uint8_t>();
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        if ((bits >> bit & 1U) != 0) ids.push_back(first + bit);
      }
      first += 8;
      continue;
    }
    first = static_cast<std::uint32_t>(reader.get_number());
    const std::uint64_t count = reader.get_number();
    if (count > kMaxSlots) throw Reader::broken();
    for (std::uint32_t i = 0; i < count; ++i) ids.push_back(first + i);
  }
  return ids;
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

Arrivals read_arrival(std::span<const std::byte> message) {
  Reader reader(message);
  Arrivals arrival;
  arrival.key = reader.get<NameKey>();
  arrival.requests = get_requests(reader);
  arrival.signature = reader.get<std::uint64_t>();
  arrival.ranks = reader.get_list<int>();
  arrival.rows = reader.get_list<std::int64_t>();
  arrival.error = get_text(reader);
  return arrival;
}

Message write_bucket(std::span<const BucketEntry> entries) {
  Writer writer(MessageKind::kBucket);
  for (std::size_t i = 0; i < entries.size();) {
    if (const auto* decision = std::get_if<Decision>(&entries[i])) {
      writer.put(EntryForm::kDecision);
      put_decision(writer, *decision);
      ++i;
      continue;
    }
    const std::uint32_t first = std::get<std::uint32_t>(entries[i]);
    std::uint32_t count = 1;
    const auto is_next = [&](const BucketEntry& entry) {
      const auto* id = std::get_if<std::uint32_t>(&entry);
      return id != nullptr && *id == first + count;
    };
    while (i + count < entries.size() && is_next(entries[i + count])) ++count;
    writer.put(EntryForm::kRun);
    writer.put_number(first);
    writer.put_number(count);
    i += count;
  }
  return writer.take();
}

std::vector<BucketEntry> read_bucket(std::span<const std::byte> message) {
  Reader reader(message);
  std::vector<BucketEntry> entries;
  while (!reader.is_empty()) {
    if (reader.get<EntryForm>() == EntryForm::kDecision) {
      entries.emplace_back(get_decision(reader));
      continue;
    }
    const auto first = static_cast<std::uint32_t>(reader.get_number());
    const std::uint64_t count = reader.get_number();
    if (count > 2 * kMaxSlots) throw Reader::broken();
    for (std::uint32_t i = 0; i < count; ++i) entries.emplace_back(first + i);
  }
  return entries;
}

Message write_tuning(const BucketTuning& tuning) {
  Writer writer(MessageKind::kTuning);
  writer.put(tuning.cycle_time_us);
  writer.put(tuning.cut);
  return writer.take();
}

BucketTuning read_tuning(std::span<const std::byte> message) {
  Reader reader(message);
  BucketTuning tuning;
  tuning.cycle_time_us = reader.get<std::uint32_t>();
  tuning.cut = reader.get<AllreduceCut>();
  return tuning;
}

Message write_lacking(MessageKind kind, const Lacking& lacking) {
  Writer writer(kind);
  writer.put(lacking.key);
  writer.put_list(std::span<const int>(lacking.ranks));
  return writer.take();
}

Lacking read_lacking(std::span<const std::byte> message) {
  Reader reader(message);
  Lacking lacking;
  lacking.key = reader.get<NameKey>();
  lacking.ranks = reader.get_list<int>();
  return lacking;
}

}  // namespace hvd
