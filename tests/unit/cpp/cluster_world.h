// Several hosts in one process: a region for each, socket pairs between them, no engines.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cluster_backend.h"
#include "bucket.h"
#include "cuts.h"
#include "data_world.h"
#include "seals.h"

namespace hvd::test {

using Bucket = std::vector<Tensor>;

// Set ranks for hosts with so many members: one host after the other, or dealt out in turns.
inline HostMap host_map(const std::vector<int>& counts, bool is_dealt) {
  HostMap map;
  map.hosts.resize(counts.size());
  int rank = 0;
  if (!is_dealt) {
    for (std::size_t host = 0; host < counts.size(); ++host) {
      for (int i = 0; i < counts[host]; ++i) map.hosts[host].push_back(rank++);
    }
    return map;
  }
  for (bool has_more = true; has_more;) {
    has_more = false;
    for (std::size_t host = 0; host < counts.size(); ++host) {
      if (static_cast<int>(map.hosts[host].size()) == counts[host]) continue;
      map.hosts[host].push_back(rank++);
      has_more = true;
    }
  }
  return map;
}

// One rank's way through a row of buckets, each followed by a meeting where a rank is absent. One
// thread at a time.
class ClusterRunner {
 public:
  ClusterRunner(Peers& peers, const HostMap& map, int rank, int size,
                const std::vector<DataLink>& links, std::vector<Bucket>& buckets)
      : peers(peers), rank(rank), backend(peers, map, rank, size, links), buckets_(buckets) {
    begin();
  }

  bool advance(PeerWait& blocked) {
    while (next_ <= buckets_.size() && backend.advance(blocked)) {
      if (must_meet_) {
        must_meet_ = false;
        backend.begin_barrier();
      } else {
        begin();
      }
    }
    return next_ > buckets_.size();
  }
  std::size_t begun() const { return next_; }

  Peers& peers;
  const int rank;
  ClusterBackend backend;

 private:
  void begin() {
    if (++next_ > buckets_.size()) return;
    Bucket& bucket = buckets_[next_ - 1];
    works_.clear();
    for (Tensor& tensor : bucket) {
      works_.push_back(tensor.work(rank));
      must_meet_ = must_meet_ || !tensor.absent.empty();
    }
    backend.begin(bucket.front().request.kind, works_, cut_of(next_));
  }

  std::vector<Bucket>& buckets_;
  std::vector<Work> works_;
  std::size_t next_ = 0;  // buckets begun
  bool must_meet_ = false;
};

// Their sockets take about so many bytes at a time.
inline void limit_sends(const std::vector<DataLink>& links, int size_bytes) {
  for (const DataLink& link : links) {
    setsockopt(link.fd, SOL_SOCKET, SO_SNDBUF, &size_bytes, sizeof size_bytes);
  }
}

enum class Sealing { kNone, kCovered, kEncrypted };

struct ClusterWorld {
  // `socket_bytes`: of each socket's buffers; 0: as they are.
  ClusterWorld(const HostMap& map, std::vector<Bucket>& buckets, int socket_bytes = 0,
               Sealing sealing = Sealing::kNone)
      : map(map), sealing_(sealing) {
    for (const auto& host : map.hosts) {
      hosts.push_back(std::make_unique<DataWorld>(static_cast<int>(host.size())));
    }
    connect();
    for (const auto& own : links) {
      if (socket_bytes != 0) limit_sends(own, socket_bytes);
    }
    const int size = static_cast<int>(links.size());
    runners.resize(links.size());
    for (int host = 0; host < map.host_count(); ++host) {
      HostMap seen = map;
      seen.own = host;
      for (int member = 0; member < map.members(host); ++member) {
        const int rank = map.hosts[host][member];
        runners[rank] = std::make_unique<ClusterRunner>(*hosts[host]->peers[member], seen, rank,
                                                        size, links[rank], buckets);
      }
    }
  }
  int size() const { return static_cast<int>(runners.size()); }

  HostMap map;
  std::vector<std::unique_ptr<DataWorld>> hosts;
  std::vector<std::vector<DataLink>> links;             // by rank
  std::vector<std::unique_ptr<ClusterRunner>> runners;  // by rank

 private:
  void connect() {
    std::size_t size = 0;
    for (const auto& host : map.hosts) size += host.size();
    links.resize(size);
    for (int a = 0; a < map.host_count(); ++a) {
      for (int b = 0; b < a; ++b) {
        for (int channel = 0; channel < map.channels(); ++channel) {
          int fds[2];
          REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
          SealsPair seals;
          if (sealing_ != Sealing::kNone) seals = seals_pair(sealing_ == Sealing::kEncrypted);
          links[map.owner(channel, a)].push_back(
              {.host = b, .channel = channel, .fd = fds[0], .seals = seals.first});
          links[map.owner(channel, b)].push_back(
              {.host = a, .channel = channel, .fd = fds[1], .seals = seals.second});
        }
      }
    }
  }

  const Sealing sealing_;
};

// What a rank that cannot go on says it waits for must make sense.
inline void check_blocked(const ClusterRunner& runner, const PeerWait& blocked) {
  std::vector<pollfd> polls;
  runner.backend.add_polls(polls);
  if (blocked.rank >= 0) REQUIRE(!runner.peers.reached(blocked));
  REQUIRE((blocked.rank >= 0 || blocked.remote >= 0));
  REQUIRE((blocked.remote >= 0) == !polls.empty());
}

// Steps the ranks in random order until all are done.
inline void run_stepped(ClusterWorld& world, std::mt19937& random) {
  std::vector<bool> done(world.runners.size(), false);
  std::size_t left = world.runners.size();
  int idle_steps = 0;
  while (left != 0) {
    const std::size_t rank = random() % world.runners.size();
    PeerWait blocked;
    if (done[rank]) continue;
    if (world.runners[rank]->advance(blocked)) {
      done[rank] = true;
      --left;
      idle_steps = 0;
    } else {
      check_blocked(*world.runners[rank], blocked);
      REQUIRE(++idle_steps < 1'000'000);
    }
  }
}

// What all ranks must get of a reduction: inside each host, then over the hosts in their order.
inline Bytes reduced_by_hosts(const Tensor& tensor, const HostMap& map) {
  const Request& request = tensor.request;
  const std::size_t count = tensor.in[0].size() / size_of(request.dtype);
  const bool is_average = request.op == ReduceOp::kAverage;
  const Bytes zeros(tensor.in[0].size());
  std::vector<Bytes> sums;
  std::vector<const std::byte*> sum_sources;
  for (const auto& host : map.hosts) {
    std::vector<const std::byte*> sources;
    for (const int rank : host) {
      sources.push_back(tensor.absent.contains(rank) ? zeros.data() : tensor.in[rank].data());
    }
    sums.emplace_back(zeros.size());
    reduce({.dtype = request.dtype,
            .op = is_average ? ReduceOp::kSum : request.op,
            .prescale = request.prescale},
           sources, sums.back().data(), nullptr, count);
  }
  for (const Bytes& sum : sums) sum_sources.push_back(sum.data());
  Bytes result(zeros.size());
  reduce({.dtype = request.dtype,
          .op = request.op,
          .postscale = request.postscale,
          .divisor = tensor.size()},
         sum_sources, result.data(), nullptr, count);
  return result;
}

inline Tensor reducescatter_over(const HostMap& map, int size, Dtype dtype, ReduceOp op,
                                 std::int64_t dim0, std::int64_t width, std::set<int> absent,
                                 std::mt19937& random) {
  Tensor tensor = reducescatter_tensor(size, dtype, op, dim0, width, std::move(absent), random);
  const Bytes result = reduced_by_hosts(tensor, map);
  auto begin = result.begin();
  for (Bytes& bytes : tensor.expected) {
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes.size());
    bytes.assign(begin, end);
    begin = end;
  }
  return tensor;
}

inline std::vector<std::int64_t> random_splits(int size, std::int64_t most, std::mt19937& random) {
  std::vector<std::int64_t> splits;
  for (int i = 0; i < size * size; ++i) {
    const bool is_empty = random() % 3 == 0;
    splits.push_back(is_empty ? 0 : static_cast<std::int64_t>(random()) % (most + 1));
  }
  return splits;
}

struct Factors {
  double prescale = 1.0;
  double postscale = 1.0;
};

inline Tensor allreduce_over(const HostMap& map, int size, Dtype dtype, ReduceOp op,
                             std::size_t count, std::set<int> absent, std::mt19937& random,
                             Factors factors = {}) {
  Tensor tensor = allreduce_tensor(size, dtype, op, count, std::move(absent), random);
  tensor.request.prescale = factors.prescale;
  tensor.request.postscale = factors.postscale;
  const Bytes result = reduced_by_hosts(tensor, map);
  for (Bytes& bytes : tensor.expected) bytes = result;
  return tensor;
}

inline void check_results(const std::vector<Bucket>& buckets) {
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (std::size_t i = 0; i < buckets[bucket].size(); ++i) {
      const Tensor& tensor = buckets[bucket][i];
      for (int rank = 0; rank < tensor.size(); ++rank) {
        CAPTURE(tensor.size());
        CAPTURE(std::string(name_of(tensor.request.kind)));
        CAPTURE(std::string(name_of(tensor.request.dtype)));
        CAPTURE(std::string(name_of(tensor.request.op)));
        CAPTURE(tensor.in[rank].size());
        CAPTURE(bucket);
        CAPTURE(i);
        CAPTURE(rank);
        REQUIRE(tensor.is_right(rank));
      }
    }
  }
}

inline void wipe(std::vector<Bucket>& buckets) {
  for (Bucket& bucket : buckets) {
    for (Tensor& tensor : bucket) tensor.wipe();
  }
}

// Every rank is a thread that sleeps in poll(2), at most a moment since counters of other ranks are
// not in there.
inline void run_threads(ClusterWorld& world) {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  std::atomic<int> unfinished{0};
  std::vector<std::thread> threads;
  for (auto& runner : world.runners) {
    threads.emplace_back([&] {
      std::vector<pollfd> polls;
      for (PeerWait blocked; !runner->advance(blocked);) {
        polls.clear();
        runner->backend.add_polls(polls);
        if (Clock::now() > deadline) {
          ++unfinished;
          return;
        }
        if (blocked.rank >= 0) {
          runner->peers.sleep(blocked, std::chrono::microseconds(polls.empty() ? 10'000 : 100));
        } else {
          poll(polls.data(), polls.size(), 100);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(unfinished == 0);
}

inline void check_threaded(const HostMap& map, std::vector<Bucket> buckets) {
  wipe(buckets);
  ClusterWorld world(map, buckets, 0, Sealing::kCovered);
  run_threads(world);
  check_results(buckets);
}

inline void check_stepped(const HostMap& map, std::vector<Bucket> buckets, unsigned seed,
                          int socket_bytes = 0) {
  std::mt19937 random(seed);
  wipe(buckets);
  ClusterWorld world(map, buckets, socket_bytes, static_cast<Sealing>(seed % 3));
  run_stepped(world, random);
  check_results(buckets);
}

}  // namespace hvd::test
