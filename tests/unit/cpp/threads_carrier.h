// A carrier between threads of one process. A collective is done by the rank that comes last.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "backend/carrier.h"
#include "kernels/reduce.h"

namespace hvd::test {

// Where the ranks of one process set meet.
class CarrierHub {
 public:
  enum class Kind { kAllreduce, kBroadcast, kAllgather, kAlltoall, kBarrier };

  // What one rank brings.
  struct Call {
    Kind kind;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::vector<std::size_t> in_sizes;
    std::vector<std::size_t> out_sizes;
    Dtype dtype = Dtype::kUint8;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;
  };

  explicit CarrierHub(int size) : calls_(static_cast<std::size_t>(size)) {}

  // The number of the collective that it is a part of.
  std::uint64_t join(int rank, Call call) {
    const std::lock_guard guard(mutex_);
    calls_[static_cast<std::size_t>(rank)] = std::move(call);
    const std::uint64_t round = done_;
    if (++arrived_ == calls_.size()) {
      run();
      arrived_ = 0;
      ++done_;
    }
    return round;
  }

  bool is_done(std::uint64_t round) {
    const std::lock_guard guard(mutex_);
    return done_ > round;
  }

 private:
  void run() {
    const Call& first = calls_.front();
    for (const Call& call : calls_) REQUIRE(call.kind == first.kind);
    switch (first.kind) {
      case Kind::kAllreduce:
        return allreduce();
      case Kind::kBroadcast:
        return broadcast();
      case Kind::kAllgather:
        return allgather();
      case Kind::kAlltoall:
        return alltoall();
      case Kind::kBarrier:
        return;
    }
  }

  void allreduce() {
    std::vector<const std::byte*> sources;
    for (const Call& call : calls_) sources.push_back(call.out);
    const Call& first = calls_.front();
    const std::size_t bytes = first.out_sizes.front();
    for (const Call& call : calls_) REQUIRE(call.out_sizes.front() == bytes);
    std::vector<std::byte> result(bytes);
    reduce({.dtype = first.dtype, .op = first.op}, sources, result.data(), nullptr,
           bytes / size_of(first.dtype));
    for (const Call& call : calls_) std::copy(result.begin(), result.end(), call.out);
  }

  void broadcast() {
    const Call& giver = calls_[static_cast<std::size_t>(calls_.front().root)];
    for (const Call& call : calls_) {
      REQUIRE(call.out_sizes == giver.out_sizes);
      if (call.out != giver.out) std::memcpy(call.out, giver.out, call.out_sizes.front());
    }
  }

  void allgather() {
    for (const Call& taker : calls_) {
      std::byte* to = taker.out;
      for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
        REQUIRE(taker.out_sizes == calls_[rank].out_sizes);
        if (taker.out_sizes[rank] != 0) std::memcpy(to, calls_[rank].in, taker.out_sizes[rank]);
        to += taker.out_sizes[rank];
      }
    }
  }

  void alltoall() {
    for (std::size_t taker = 0; taker < calls_.size(); ++taker) {
      std::byte* to = calls_[taker].out;
      for (std::size_t giver = 0; giver < calls_.size(); ++giver) {
        const auto sizes = calls_[giver].in_sizes.begin();
        const auto until = sizes + static_cast<std::ptrdiff_t>(taker);
        REQUIRE(*until == calls_[taker].out_sizes[giver]);
        const std::size_t begin = std::accumulate(sizes, until, std::size_t{0});
        if (*until != 0) std::memcpy(to, calls_[giver].in + begin, *until);
        to += *until;
      }
    }
  }

  std::mutex mutex_;
  std::vector<Call> calls_;
  std::size_t arrived_ = 0;
  std::uint64_t done_ = 0;
};

// Knows few dtypes and no product, so that the engine's kernels are needed, too.
class ThreadsCarrier final : public Carrier {
 public:
  ThreadsCarrier(std::shared_ptr<CarrierHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  const std::string& name() const override { return name_; }

  bool reduces(Dtype dtype, ReduceOp op) const override {
    return (dtype == Dtype::kFloat32 || dtype == Dtype::kInt64) && op != ReduceOp::kProduct;
  }

  void allreduce(std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) override {
    join({.kind = CarrierHub::Kind::kAllreduce,
          .out = data,
          .in_sizes = {},
          .out_sizes = {count * size_of(dtype)},
          .dtype = dtype,
          .op = op});
  }

  void broadcast(std::byte* data, std::size_t size_bytes, int root) override {
    join({.kind = CarrierHub::Kind::kBroadcast,
          .out = data,
          .in_sizes = {},
          .out_sizes = {size_bytes},
          .root = root});
  }

  void allgather(const std::byte* in, std::byte* out, std::span<const std::size_t> sizes) override {
    join({.kind = CarrierHub::Kind::kAllgather,
          .in = in,
          .out = out,
          .in_sizes = {},
          .out_sizes = {sizes.begin(), sizes.end()}});
  }

  void alltoall(const std::byte* in, std::span<const std::size_t> in_sizes, std::byte* out,
                std::span<const std::size_t> out_sizes) override {
    join({.kind = CarrierHub::Kind::kAlltoall,
          .in = in,
          .out = out,
          .in_sizes = {in_sizes.begin(), in_sizes.end()},
          .out_sizes = {out_sizes.begin(), out_sizes.end()}});
  }

  void barrier() override {
    join({.kind = CarrierHub::Kind::kBarrier, .in_sizes = {}, .out_sizes = {}});
  }

  bool test() override { return hub_->is_done(round_); }

 private:
  void join(CarrierHub::Call call) { round_ = hub_->join(rank_, std::move(call)); }

  const std::shared_ptr<CarrierHub> hub_;
  const int rank_;
  const std::string name_ = "threads";
  std::uint64_t round_ = 0;
};

// One for each member of a set, which has several.
inline std::vector<std::shared_ptr<Carrier>> carriers(std::size_t size) {
  const auto hub = std::make_shared<CarrierHub>(static_cast<int>(size));
  std::vector<std::shared_ptr<Carrier>> result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    result.push_back(size == 1 ? nullptr
                               : std::make_shared<ThreadsCarrier>(hub, static_cast<int>(rank)));
  }
  return result;
}

}  // namespace hvd::test
