// A data plane between threads of one process. A collective is done by the rank that comes last, on
// copies: a rank that has given up takes its tensors with it, whatever the others still do.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "backend/data_plane.h"
#include "kernels/reduce.h"

namespace hvd::test {

// Where the ranks of one process set meet.
class PlaneHub {
 public:
  enum class Kind { kAllreduce, kBroadcast, kAllgather, kAlltoall, kBarrier };

  // What one rank brings, and what it gets.
  struct Call {
    Kind kind;
    std::vector<std::byte> in = {};
    std::vector<std::byte> out = {};
    std::vector<std::size_t> in_sizes = {};
    std::vector<std::size_t> out_sizes = {};
    Dtype dtype = Dtype::kUint8;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;
  };

  explicit PlaneHub(int size) : calls_(static_cast<std::size_t>(size)) {}

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

  // Puts the rank's result at `to`, if that collective is done.
  bool take(int rank, std::uint64_t round, std::byte* to) {
    const std::lock_guard guard(mutex_);
    if (done_ <= round) return false;
    std::ranges::copy(calls_[static_cast<std::size_t>(rank)].out, to);
    return true;
  }

 private:
  void run() {
    const Call& first = calls_.front();
    for (const Call& call : calls_) REQUIRE(call.kind == first.kind);
    for (Call& call : calls_) {
      call.out.resize(std::accumulate(call.out_sizes.begin(), call.out_sizes.end(), 0UL));
    }
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
    for (const Call& call : calls_) sources.push_back(call.in.data());
    Call& first = calls_.front();
    for (const Call& call : calls_) REQUIRE(call.out.size() == first.out.size());
    reduce({.dtype = first.dtype, .op = first.op}, sources, first.out.data(), nullptr,
           first.out.size() / size_of(first.dtype));
    for (Call& call : calls_) call.out = first.out;
  }

  void broadcast() {
    const Call& giver = calls_[static_cast<std::size_t>(calls_.front().root)];
    for (Call& call : calls_) {
      REQUIRE(call.out_sizes == giver.out_sizes);
      call.out = giver.in;
    }
  }

  void allgather() {
    for (Call& taker : calls_) {
      auto to = taker.out.begin();
      for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
        REQUIRE(taker.out_sizes == calls_[rank].out_sizes);
        REQUIRE(taker.out_sizes[rank] == calls_[rank].in.size());
        to = std::ranges::copy(calls_[rank].in, to).out;
      }
    }
  }

  void alltoall() {
    for (std::size_t taker = 0; taker < calls_.size(); ++taker) {
      auto to = calls_[taker].out.begin();
      for (std::size_t giver = 0; giver < calls_.size(); ++giver) {
        const auto sizes = calls_[giver].in_sizes.begin();
        const auto until = sizes + static_cast<std::ptrdiff_t>(taker);
        REQUIRE(*until == calls_[taker].out_sizes[giver]);
        const auto begin = static_cast<std::ptrdiff_t>(std::accumulate(sizes, until, 0UL));
        to = std::copy_n(calls_[giver].in.begin() + begin, *until, to);
      }
    }
  }

  std::mutex mutex_;
  std::vector<Call> calls_;
  std::size_t arrived_ = 0;
  std::uint64_t done_ = 0;
};

// Knows few dtypes and no product, so that the engine's kernels are needed, too.
class ThreadsDataPlane final : public DataPlane {
 public:
  ThreadsDataPlane(std::shared_ptr<PlaneHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  bool reduces(Dtype dtype, ReduceOp op) const override {
    return (dtype == Dtype::kFloat32 || dtype == Dtype::kInt64) && op != ReduceOp::kProduct;
  }

  void allreduce(std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) override {
    const std::size_t size_bytes = count * size_of(dtype);
    join({.kind = PlaneHub::Kind::kAllreduce,
          .in = {data, data + size_bytes},
          .out_sizes = {size_bytes},
          .dtype = dtype,
          .op = op},
         data);
  }

  void broadcast(std::byte* data, std::size_t size_bytes, int root) override {
    join({.kind = PlaneHub::Kind::kBroadcast,
          .in = {data, data + size_bytes},
          .out_sizes = {size_bytes},
          .root = root},
         data);
  }

  void allgather(const std::byte* in, std::byte* out, std::span<const std::size_t> sizes) override {
    join({.kind = PlaneHub::Kind::kAllgather,
          .in = {in, in + sizes[static_cast<std::size_t>(rank_)]},
          .out_sizes = {sizes.begin(), sizes.end()}},
         out);
  }

  void alltoall(const std::byte* in, std::span<const std::size_t> in_sizes, std::byte* out,
                std::span<const std::size_t> out_sizes) override {
    join({.kind = PlaneHub::Kind::kAlltoall,
          .in = {in, in + std::accumulate(in_sizes.begin(), in_sizes.end(), 0UL)},
          .in_sizes = {in_sizes.begin(), in_sizes.end()},
          .out_sizes = {out_sizes.begin(), out_sizes.end()}},
         out);
  }

  void barrier() override { join({.kind = PlaneHub::Kind::kBarrier}, nullptr); }

  bool test() override { return hub_->take(rank_, round_, out_); }

 private:
  void join(PlaneHub::Call call, std::byte* out) {
    out_ = out;
    round_ = hub_->join(rank_, std::move(call));
  }

  const std::shared_ptr<PlaneHub> hub_;
  const int rank_;
  std::uint64_t round_ = 0;
  std::byte* out_ = nullptr;  // where the result goes
};

// One for each member of a set, which has several.
inline std::vector<std::shared_ptr<DataPlane>> data_planes(std::size_t size) {
  const auto hub = std::make_shared<PlaneHub>(static_cast<int>(size));
  std::vector<std::shared_ptr<DataPlane>> result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    result.push_back(size == 1 ? nullptr
                               : std::make_shared<ThreadsDataPlane>(hub, static_cast<int>(rank)));
  }
  return result;
}

}  // namespace hvd::test
