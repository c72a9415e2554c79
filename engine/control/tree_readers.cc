// Reads the messages between leaders of hosts. Pure: every value is checked against the process set
// before it is returned. A BadMessage names a wrong value.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "control/tree_messages.h"
#include "core/text.h"
#include "core/wire.h"

namespace hvd {

namespace {

constexpr std::uint64_t kMostIds = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMostErrorBytes = sizeof Round::error;
// The numbers of received rows are int32 in results.
constexpr std::int64_t kMostSplit = std::numeric_limits<std::int32_t>::max();

// Begins after the kind, which the caller has read.
WireReader reader_of(std::span<const std::byte> message) {
  return {name_of(kind_of(message)), message.subspan(std::min<std::size_t>(message.size(), 1))};
}

bool has_member(const TreeScope& scope, int world_rank) {
  if (scope.members.empty()) return world_rank >= 0 && world_rank < scope.size;
  return std::ranges::binary_search(scope.members, world_rank);
}

NameKey get_key(WireReader& reader) {
  const auto low = reader.get<std::uint64_t>("key");
  return {.low = low, .high = reader.get<std::uint64_t>("key")};
}

void check_member(const WireReader& reader, const TreeScope& scope, const char* field,
                  int world_rank) {
  if (has_member(scope, world_rank)) return;
  reader.refuse(field, "rank " + std::to_string(world_rank),
                "a member of the set, which has " + std::to_string(scope.size) + " ranks");
}

// The root of a decided join is the set rank that came last.
void check_root(const WireReader& reader, const TreeScope& scope, const Request& request) {
  if (collective_of(request.kind).has_root) check_member(reader, scope, "root", request.root);
  if (request.kind != Kind::kJoin || (request.root >= 0 && request.root < scope.size)) return;
  reader.refuse("root", std::to_string(request.root),
                "a rank of a set of " + std::to_string(scope.size));
}

void check_shape(const WireReader& reader, const Request& request) {
  const auto rows = request.shape().subspan(std::min(1, request.dims_count));
  if (!bytes_of(request.shape(), request.dtype) || !bytes_of(rows, request.dtype)) {
    reader.refuse("dims", shape_text(request.shape()), "a tensor that memory can hold");
  }
  if (scalar_refusal(request)) {
    reader.refuse("dims", "[]", std::string("at least one dimension for ") + name_of(request.kind));
  }
}

Request get_request(WireReader& reader, const TreeScope& scope) {
  Request request;
  request.kind = reader.get_enum<Kind>("kind", kKindCount);
  request.dtype = reader.get_enum<Dtype>("dtype", kDtypeCount);
  request.op = reader.get_enum<ReduceOp>("op", kReduceOpCount);
  request.is_grouped = reader.get_flag("is_grouped");
  request.numbering = reader.get_enum<Numbering>("numbering", kNumberingCount);
  request.memory = reader.get_enum<Memory>("memory", kMemoryCount);
  request.format = reader.get_enum<LinkFormat>("format", kLinkFormatCount);
  request.root = reader.get<std::int32_t>("root");
  request.rank = reader.get<std::int32_t>("rank");
  request.prescale = reader.get<double>("prescale");
  request.postscale = reader.get<double>("postscale");
  request.dims_count = reader.get<std::uint8_t>("dims_count", 0, Request::kMaxDims);
  for (int i = 0; i < request.dims_count; ++i) {
    request.dims[static_cast<std::size_t>(i)] = reader.get<std::int64_t>("dims");
  }
  check_root(reader, scope, request);
  check_member(reader, scope, "rank", request.rank);
  check_shape(reader, request);
  return request;
}

// One tensor, or a group of one kind.
std::vector<Request> get_requests(WireReader& reader, const TreeScope& scope,
                                  std::uint64_t most = kMaxSlots) {
  std::vector<Request> requests;
  const std::uint64_t count = reader.get_number("requests", 1, most);
  for (std::uint64_t i = 0; i < count; ++i) requests.push_back(get_request(reader, scope));
  const Request& first = requests.front();
  const Collective& collective = collective_of(first.kind);
  if (count != 1 && (collective.has_splits() || !collective.has_tensors())) {
    reader.refuse("requests", std::to_string(count), std::string("1 for ") + name_of(first.kind));
  }
  for (const Request& request : requests) {
    if (request.kind == first.kind && request.memory == first.memory) continue;
    reader.refuse("requests", std::string(name_of(request.kind)) + " in " + name_of(request.memory),
                  std::string(name_of(first.kind)) + " in " + name_of(first.memory) +
                      " like the first of the group");
  }
  return requests;
}

// A join's request has the rank that came last. Its signature does not cover that.
std::uint64_t get_signature(WireReader& reader, std::span<const Request> requests) {
  const auto signature = reader.get<std::uint64_t>("signature");
  if (requests.front().kind != Kind::kJoin && signature != signature_of(requests)) {
    reader.refuse("signature", std::to_string(signature), "the signature of the requests");
  }
  return signature;
}

std::size_t rows_count(std::span<const Request> requests, std::size_t ranks, int size) {
  switch (collective_of(requests.front().kind).row_counts) {
    case RowCounts::kPerRank:
      return requests.size() * ranks;
    case RowCounts::kPerPair:
      return ranks * static_cast<std::size_t>(size);
    case RowCounts::kNone:
      break;
  }
  return 0;
}

// The sum of the rows of one tensor must fit into memory.
void check_rows(const WireReader& reader, const Request& request,
                std::span<const std::int64_t> rows) {
  const std::int64_t most = collective_of(request.kind).has_splits() ? kMostSplit : kMaxTensorBytes;
  const auto row = request.shape().subspan(std::min(1, request.dims_count));
  const std::int64_t row_bytes = std::max<std::int64_t>(1, *bytes_of(row, request.dtype));
  std::int64_t left = kMaxTensorBytes / row_bytes;
  for (const std::int64_t count : rows) {
    if (count >= 0 && count <= most && count <= left) {
      left -= count;
      continue;
    }
    reader.refuse("rows", std::to_string(count), "a number of rows that memory can hold");
  }
}

std::vector<std::int64_t> get_rows(WireReader& reader, std::span<const Request> requests,
                                   std::size_t ranks, int size) {
  const std::size_t expected = rows_count(requests, ranks, size);
  std::vector<std::int64_t> rows = reader.get_list<std::int64_t>("rows", expected);
  if (rows.size() != expected) {
    reader.refuse("rows", std::to_string(rows.size()) + " numbers",
                  std::to_string(expected) + " for " + std::to_string(ranks) + " ranks");
  }
  const std::size_t each = rows.size() / requests.size();
  for (std::size_t i = 0; i < requests.size() && each != 0; ++i) {
    check_rows(reader, requests[i], std::span(rows).subspan(i * each, each));
  }
  return rows;
}

std::string ranks_text(std::span<const int> ranks) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() > kMost ? ", ..." : "");
}

// The sender must speak for each rank. No rank may appear twice.
std::vector<int> get_speakers(WireReader& reader, const TreeScope& scope) {
  std::vector<int> ranks = reader.get_list<std::int32_t>("ranks", scope.speakers.size());
  if (ranks.empty()) reader.refuse("ranks", "no rank", "at least one");
  std::vector<bool> is_known(static_cast<std::size_t>(scope.size));
  for (const int rank : ranks) {
    if (!std::ranges::binary_search(scope.speakers, rank)) {
      reader.refuse("ranks", "rank " + std::to_string(rank),
                    "ranks that it speaks for: " + ranks_text(scope.speakers));
    }
    if (is_known[static_cast<std::size_t>(rank)]) {
      reader.refuse("ranks", "rank " + std::to_string(rank) + " twice", "each rank once");
    }
    is_known[static_cast<std::size_t>(rank)] = true;
  }
  return ranks;
}

Decision get_decision(WireReader& reader, const TreeScope& scope, std::uint64_t most_requests) {
  Decision decision;
  decision.key = get_key(reader);
  decision.wire_id = reader.get<std::uint32_t>("wire_id", 1, kMostIds);
  decision.requests = get_requests(reader, scope, most_requests);
  decision.signature = get_signature(reader, decision.requests);
  decision.error = reader.get_text("error", kMostErrorBytes);
  const auto size = static_cast<std::size_t>(scope.size);  // what failed has no rows
  decision.rows =
      get_rows(reader, decision.requests, decision.error.empty() ? size : 0, scope.size);
  decision.has_absent = reader.get_flag("has_absent");
  return decision;
}

IdRun get_run(WireReader& reader, std::uint64_t most) {
  const std::uint64_t first = reader.get_number("ids", 1, kMostIds);
  const std::uint64_t count = reader.get_number("number of ids", 1, most);
  if (count > kMostIds - first + 1) {
    reader.refuse("ids", std::to_string(first) + " and " + std::to_string(count - 1) + " more",
                  "ids of 32 bits");
  }
  return {.first = static_cast<std::uint32_t>(first), .count = static_cast<std::uint32_t>(count)};
}

std::vector<std::uint32_t> get_runs(WireReader& reader) {
  std::vector<std::uint32_t> ids;
  while (!reader.is_empty()) {
    const IdRun run = get_run(reader, kMaxSlots - ids.size());
    if (!ids.empty() && run.first <= ids.back()) {
      reader.refuse("ids", std::to_string(run.first), "more than " + std::to_string(ids.back()));
    }
    for (std::uint32_t i = 0; i < run.count; ++i) ids.push_back(run.first + i);
  }
  return ids;
}

std::vector<std::uint32_t> get_bits(WireReader& reader) {
  std::vector<std::uint32_t> ids;
  std::uint64_t first = reader.get_number("ids", 1, kMostIds);
  for (; !reader.is_empty(); first += 8) {
    const auto bits = reader.get<std::uint8_t>("bits of ids");
    for (std::uint32_t bit = 0; bit < 8; ++bit) {
      if ((bits >> bit & 1U) != 0) ids.push_back(static_cast<std::uint32_t>(first + bit));
    }
    if (first + 7 > kMostIds || ids.size() > kMaxSlots) {
      reader.refuse("bits of ids", std::to_string(ids.size()) + " ids from there on",
                    "at most " + std::to_string(kMaxSlots) + " ids of 32 bits");
    }
  }
  return ids;
}

LinkFormat get_tuned_format(WireReader& reader) {
  const auto format = reader.get_enum<LinkFormat>("link_format", kLinkFormatCount);
  if (!is_decided(format)) {
    reader.refuse("link_format", name_of(format), "none or a low-bit format");
  }
  return format;
}

}  // namespace

std::vector<std::uint32_t> read_ids(std::span<const std::byte> message) {
  WireReader reader = reader_of(message);
  return reader.get_enum<IdForm>("form of ids", 2) == IdForm::kBits ? get_bits(reader)
                                                                    : get_runs(reader);
}

Arrivals read_arrival(std::span<const std::byte> message, const TreeScope& scope) {
  WireReader reader = reader_of(message);
  Arrivals arrival;
  arrival.key = get_key(reader);
  arrival.requests = get_requests(reader, scope);
  arrival.signature = get_signature(reader, arrival.requests);
  arrival.ranks = get_speakers(reader, scope);
  arrival.rows = get_rows(reader, arrival.requests, arrival.ranks.size(), scope.size);
  arrival.error = reader.get_text("error", kMostErrorBytes);
  reader.end();
  return arrival;
}

// Each name that waits has one item: a slot or a chain of slots. So there are not more.
std::vector<BucketEntry> read_bucket(std::span<const std::byte> message, const TreeScope& scope) {
  WireReader reader = reader_of(message);
  std::vector<BucketEntry> entries;
  for (std::uint64_t left = 2 * kMaxSlots; entries.empty() || !reader.is_empty();) {
    if (reader.get_enum<EntryForm>("form of an item", 2) == EntryForm::kDecision) {
      Decision decision = get_decision(reader, scope, std::min<std::uint64_t>(left, kMaxSlots));
      left -= decision.requests.size();
      entries.emplace_back(std::move(decision));
    } else {
      const IdRun run = get_run(reader, left);
      left -= run.count;
      entries.emplace_back(run);
    }
  }
  return entries;
}

BucketTuning read_tuning(std::span<const std::byte> message) {
  WireReader reader = reader_of(message);
  BucketTuning tuning;
  tuning.cycle_time_us = reader.get<std::uint32_t>("cycle_time_us");
  tuning.cut.block_kib = reader.get<std::uint16_t>("block_kib", kLeastBlockKib, kMostBlockKib);
  tuning.cut.small_kib = reader.get<std::uint16_t>("small_kib", 0, kMostSmallKib);
  tuning.cut.small_between_hosts_kib =
      reader.get<std::uint16_t>("small_between_hosts_kib", 0, kMostSmallKib);
  tuning.link_format = get_tuned_format(reader);
  reader.end();
  return tuning;
}

// An answer has ranks of the set, rising. A question has none.
Lacking read_lacking(std::span<const std::byte> message, const TreeScope& scope) {
  WireReader reader = reader_of(message);
  Lacking lacking;
  lacking.key = get_key(reader);
  const bool is_answer = kind_of(message) == MessageKind::kLacking;
  lacking.ranks =
      reader.get_list<std::int32_t>("ranks", is_answer ? static_cast<std::size_t>(scope.size) : 0);
  int last = -1;
  for (const int rank : lacking.ranks) {
    if (rank <= last || rank >= scope.size) {
      reader.refuse("ranks", "rank " + std::to_string(rank),
                    "rising ranks of a set of " + std::to_string(scope.size));
    }
    last = rank;
  }
  reader.end();
  return lacking;
}

NameKey read_name(std::span<const std::byte> message) {
  WireReader reader = reader_of(message);
  const NameKey key = get_key(reader);
  reader.end();
  return key;
}

void read_ordered(std::span<const std::byte> message) { reader_of(message).end(); }

LaunchNumber read_launch(std::span<const std::byte> message) {
  WireReader reader = reader_of(message);
  LaunchNumber launch;
  launch.bucket = static_cast<std::uint32_t>(
      reader.get_number("bucket", 0, std::numeric_limits<std::uint32_t>::max()));
  launch.number = reader.get_number("number", 1, kMostLaunch);
  reader.end();
  return launch;
}

}  // namespace hvd
