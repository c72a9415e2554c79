// The boards of all ranks over one memory, used from one thread.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/negotiation_table.h"
#include "world_of_threads.h"

namespace hvd::test {

inline NegotiationConfig with_cache(std::uint32_t capacity) {
  NegotiationConfig config;
  config.cache_capacity = capacity;
  return config;
}

class NegotiationTables {
 public:
  using Requests = std::vector<Request>;
  using Splits = std::vector<std::int64_t>;

  explicit NegotiationTables(int size, NegotiationConfig config = {})
      : region_(Region::allocate(NegotiationTable::region_bytes(size))), refs_(size) {
    config.size = size;
    for (config.rank = 0; config.rank < size; ++config.rank) {
      negotiations_.push_back(std::make_unique<NegotiationTable>(region_->data(), config));
    }
  }

  NegotiationTable& operator[](int rank) { return *negotiations_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(negotiations_.size()); }

  // A tensor, a group, or an alltoall. True when something became ready.
  bool arrive(int rank, const std::string& name, Requests requests, const Splits& splits = {}) {
    for (Request& request : requests) request.rank = rank;
    SlotRef& ref = refs_[static_cast<std::size_t>(rank)];
    ref = {};
    const SharedLock lock = (*this)[rank].lock();
    return (*this)[rank].arrive(key_of(name), requests, splits, signature_of(requests), ref);
  }
  bool arrive(int rank, const std::string& name, const Request& request) {
    return arrive(rank, name, Requests{request});
  }
  bool join(int rank) { return arrive(rank, "join", float_request(Kind::kJoin, {})); }

  SlotRef ref(int rank) const { return refs_[static_cast<std::size_t>(rank)]; }

  std::vector<BucketItem> bucket(std::uint32_t index) {
    {
      const SharedLock lock = negotiations_[0]->lock();
      if (!negotiations_[0]->has_bucket(index)) negotiations_[0]->form_bucket();
    }
    std::vector<BucketItem> items;
    if (negotiations_[0]->has_bucket(index)) negotiations_[0]->bucket_items(index, items);
    return items;
  }

  void finish(std::uint32_t index) {
    for (auto& negotiation : negotiations_) {
      const SharedLock lock = negotiation->lock();
      negotiation->finish_bucket(index);
    }
  }

  // The error of the next bucket, which has one item; "" for none.
  std::string run_one() {
    const std::vector<BucketItem> items = bucket(next_);
    REQUIRE(items.size() == 1);
    const std::optional<std::string> error = negotiations_.back()->error_of(items[0]);
    finish(next_++);
    return error.value_or("");
  }

 private:
  std::shared_ptr<Region> region_;
  std::vector<std::unique_ptr<NegotiationTable>> negotiations_;
  std::vector<SlotRef> refs_;
  std::uint32_t next_ = 0;
};

}  // namespace hvd::test
