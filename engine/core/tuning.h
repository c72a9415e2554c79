// Settings that may change while the engine runs: when a bucket starts, how large it is, how it is
// cut, and how tensors whose format is tuned travel between hosts. No result depends on the others.
//
// The rank that cuts a bucket writes the values into the bucket's record. So all ranks run the
// bucket with the same values, even if the settings change meanwhile. Between hosts the root sends
// changed values down the tree ahead of the bucket. The ranks need no agreement and no wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/link_format.h"

namespace hvd {

// The smallest and the largest block, and the largest allreduce that may count as small.
inline constexpr std::uint16_t kLeastBlockKib = 64;
inline constexpr std::uint16_t kMostBlockKib = 8192;
inline constexpr std::uint16_t kMostSmallKib = 32768;

// How an allreduce is cut. Every bucket has its own values, so that all ranks cut it alike.
struct AllreduceCut {
  std::uint16_t block_kib = 512;  // most that a rank stages at a time
  // An allreduce up to this size (its bytes times the ranks of the host) has one synchronisation,
  // and all ranks repeat all additions. For larger ones a second synchronisation costs less
  // (measured, two ranks).
  std::uint16_t small_kib = 64;
  // Up to this size (bytes of a channel times hosts), data makes one trip between hosts. For larger
  // ones a second trip costs less than the bytes that it saves (per rank, over all links).
  std::uint16_t small_between_hosts_kib = 64;

  std::size_t block_bytes() const { return std::size_t{block_kib} * 1024; }
  std::size_t small_bytes() const { return std::size_t{small_kib} * 1024; }
  std::size_t small_between_hosts_bytes() const {
    return std::size_t{small_between_hosts_kib} * 1024;
  }
  bool operator==(const AllreduceCut&) const = default;
};

// What the record of a bucket tells the ranks that run it.
struct BucketTuning {
  std::uint32_t cycle_time_us = 0;  // ready tensors wait so long for more; 0: the engine decides
  AllreduceCut cut;
  LinkFormat link_format = LinkFormat::kExact;  // of tensors with kTuned

  bool operator==(const BucketTuning&) const = default;
};

struct Tuning {
  std::uint64_t fusion_threshold_bytes = 128UL << 20;
  BucketTuning bucket;
};

}  // namespace hvd
