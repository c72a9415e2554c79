#include "tree_host.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "control/tree.h"
#include "seals.h"

namespace hvd::fuzz {

namespace {

constexpr int kJoinName = kNames;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

std::vector<int> ranks_below(int host) {
  const Hosts& hosts = tree_hosts();
  std::vector<int> ranks;
  for (const int below : tree_below(host, static_cast<int>(hosts.size()))) {
    const auto& there = hosts[static_cast<std::size_t>(below)];
    ranks.insert(ranks.end(), there.begin(), there.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

Request request_of(Kind kind, int rank, std::vector<std::int64_t> shape) {
  Request request;
  request.kind = kind;
  request.rank = rank;
  request.dims_count = static_cast<std::int32_t>(shape.size());
  std::ranges::copy(shape, request.dims.begin());
  return request;
}

// What a rank submits under a name; number 9 is different everywhere.
std::vector<Request> requests_of(int name, int rank) {
  switch (name) {
    case 2: {
      Request request = request_of(Kind::kBroadcast, rank, {3});
      request.root = 1;
      return {request};
    }
    case 3:
      return {request_of(Kind::kAllgather, rank, {rank + 1, 2})};
    case 4:
      return {request_of(Kind::kAlltoall, rank, {2 * kTreeSize})};
    case 5: {
      std::vector<Request> group;
      for (int i = 1; i <= 3; ++i) group.push_back(request_of(Kind::kAllreduce, rank, {i, i}));
      for (Request& request : group) request.is_grouped = true;
      return group;
    }
    case 6:
      return {request_of(Kind::kBarrier, rank, {})};
    case 7:
      return {request_of(Kind::kReducescatter, rank, {2 * kTreeSize, 3})};
    case 8: {
      Request request = request_of(Kind::kAllreduce, rank, {6});
      request.dtype = Dtype::kFloat16;
      request.op = ReduceOp::kMax;
      request.numbering = Numbering::kOfKind;
      return {request};
    }
    case 9:
      return {request_of(Kind::kAllreduce, rank, {rank})};
    case kOnGpus: {
      Request request = request_of(Kind::kAllreduce, rank, {5});
      request.memory = Memory::kCuda;
      return {request};
    }
    case kJoinName:
      return {request_of(Kind::kJoin, rank, {})};
    default:
      return {request_of(Kind::kAllreduce, rank, {name + 4})};
  }
}

std::vector<std::int64_t> splits_of(int name, int rank) {
  std::vector<std::int64_t> splits;
  for (int to = 0; to < kTreeSize && name == 4; ++to) splits.push_back((rank + to) % 3);
  return splits;
}

NameKey key_of_name(int name) { return key_of("operation " + std::to_string(name)); }

}  // namespace

const Hosts& tree_hosts() {
  static const Hosts hosts{{0, 1}, {2}, {3, 4}, {5, 6, 7}};
  return hosts;
}

Pair connected_pair() {
  int pair[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
          "no sockets are left");
  const auto [first, second] = test::seals_pair();
  return {{.fd = pair[0], .seals = first}, {.fd = pair[1], .seals = second}};
}

MessageLink link_at(const End& end, int rank) { return {end.fd, rank, end.seals, "control link"}; }

TreeHost::TreeHost(int host, const std::optional<End>& parent, const std::vector<End>& children)
    : host_(host), region_(Region::allocate(NegotiationTable::region_bytes(kTreeSize))) {
  const Hosts& hosts = tree_hosts();
  NegotiationConfig config;
  config.size = kTreeSize;
  config.local = hosts[static_cast<std::size_t>(host)];
  config.collected = ranks_below(host);
  config.is_root = host == 0;
  config.launches = &launches_;
  config.cache_capacity = 4;  // so that names are forgotten
  for (const int rank : config.local) {
    config.rank = rank;
    ranks_.push_back({.rank = rank,
                      .negotiation = std::make_unique<NegotiationTable>(region_->data(), config),
                      .refs = {},
                      .is_in_flight = {}});
  }
  std::optional<MessageLink> up;
  if (parent) up.emplace(link_at(*parent, hosts[static_cast<std::size_t>(tree_parent(host))][0]));
  std::vector<Relay::Child> below;
  const std::vector<int> numbers = tree_children(host, static_cast<int>(hosts.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const int leader = hosts[static_cast<std::size_t>(numbers[i])][0];
    below.push_back({link_at(children[i], leader), ranks_below(numbers[i])});
  }
  relay_ = std::make_unique<Relay>(*ranks_.front().negotiation, std::move(up), std::move(below));
}

void TreeHost::submit(int name) {
  if (name == kOnGpus && host_ == 3) ranks_.back().negotiation->order_launches();
  for (Rank& rank : ranks_) {
    if (!rank.has_joined) arrive(rank, name);
  }
}

void TreeHost::join(std::size_t index) {
  Rank& rank = ranks_[index % ranks_.size()];
  if (rank.has_joined) return;
  arrive(rank, kJoinName);
  rank.has_joined = true;
}

void TreeHost::ask(int name) { relay_->is_awaited(key_of_name(name)); }

void TreeHost::arrive(Rank& rank, int name) {
  if (rank.is_in_flight[name]) return;
  const std::vector<Request> requests = requests_of(name, rank.rank);
  const SharedLock lock = rank.negotiation->lock();
  rank.negotiation->arrive(key_of_name(name), requests, splits_of(name, rank.rank),
                           signature_of(requests), rank.refs[name]);
  rank.is_in_flight[name] = true;
}

bool TreeHost::pump() {
  bool moved = relay_->pump();
  if (host_ == 0) {
    {
      const SharedLock lock = ranks_.front().negotiation->lock();
      moved |= ranks_.front().negotiation->form_bucket();
    }
    relay_->announce();
  }
  return moved;
}

void TreeHost::run_buckets() {
  for (; ranks_.front().negotiation->has_bucket(next_); ++next_) {
    std::vector<BucketItem> items;
    ranks_.front().negotiation->bucket_items(next_, items);
    for (Rank& rank : ranks_) {
      for (const BucketItem& item : items) look_at(rank, item);
    }
    for (const Rank& rank : ranks_) {
      const SharedLock lock = rank.negotiation->lock();
      rank.negotiation->finish_bucket(next_);
    }
  }
}

void TreeHost::look_at(Rank& rank, const BucketItem& item) {
  const NegotiationTable& negotiation = *rank.negotiation;
  const std::optional<std::string> error = negotiation.error_of(item);
  const Kind kind = negotiation.request_of(item).kind;
  if (negotiation.is_absent(item)) {
    require(rank.has_joined, "a rank that has not joined is absent");
    if (!error) check_rows(rank, item);
    return;
  }
  const auto is_it = [&](const auto& ref) {
    return ref.second.slot == item.slot && rank.is_in_flight[ref.first];
  };
  const auto found = std::ranges::find_if(rank.refs, is_it);
  require(found != rank.refs.end(), "a bucket has what this rank has not submitted");
  rank.is_in_flight[found->first] = false;
  const std::vector<Request> own = requests_of(found->first, rank.rank);
  if (found->first == kJoinName) rank.has_joined = false;
  if (error) return;
  require(kind == own.front().kind, "the operation is of another kind");
  if (kind == Kind::kJoin) {
    require(negotiation.last_of(item) >= 0 && negotiation.last_of(item) < kTreeSize,
            "nobody joined last");
  }
  std::vector<BucketItem> tensors;
  negotiation.tensors_of(item, tensors);
  require(tensors.size() == own.size(), "the group has another size");
  check_rows(rank, item);
}

// As the engine and its backends add them up.
void TreeHost::check_rows(const Rank& rank, const BucketItem& item) {
  const NegotiationTable& negotiation = *rank.negotiation;
  const Request& request = negotiation.request_of(item);
  std::vector<std::int64_t> rows;
  if (request.kind == Kind::kAllgather) {
    for (int from = 0; from < kTreeSize; ++from) rows.push_back(negotiation.rows_of(item, from));
    if (!negotiation.is_absent(item)) {
      require(rows[static_cast<std::size_t>(rank.rank)] == rank.rank + 1, "other rows than own");
    }
  } else if (request.kind == Kind::kAlltoall) {
    negotiation.splits_of(item, rows);
    for (std::size_t to = 0; to < kTreeSize && !negotiation.is_absent(item); ++to) {
      const std::int64_t split = rows[static_cast<std::size_t>(rank.rank) * kTreeSize + to];
      require(split == splits_of(4, rank.rank)[to], "other splits than own");
    }
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : rows) {
    require(count >= 0 && !__builtin_add_overflow(sum, count, &sum), "rows are no numbers of rows");
  }
  std::int64_t bytes = 0;
  const auto row_bytes = static_cast<std::int64_t>(request.row_count() * size_of(request.dtype));
  require(row_bytes >= 0 && !__builtin_mul_overflow(sum, row_bytes, &bytes),
          "a result that no memory can hold");
}

}  // namespace hvd::fuzz
