// What may change while the engine runs: when it starts, how much it takes at a time, how it cuts
// that. No result depends on any of it.
//
// The rank that cuts a bucket writes the values into the bucket's record, so all ranks run it with
// the same values, whatever changes meanwhile. Between hosts the root sends changed values down the
// tree ahead of the bucket. The ranks agree on nothing and wait for nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

// Least and most of what is staged at a time, and most of what is small.
inline constexpr std::uint16_t kLeastBlockKib = 64;
inline constexpr std::uint16_t kMostBlockKib = 1024;
inline constexpr std::uint16_t kMostSmallKib = 32768;

// How an allreduce is cut. Every bucket has its own, so that all ranks cut it alike.
struct AllreduceCut {
  std::uint16_t block_kib = 512;  // most that a rank stages at a time
  // Up to here, in bytes of the allreduce times ranks of the host, one synchronisation is worth
  // more than the additions that all ranks repeat (measured, two ranks).
  std::uint16_t small_kib = 64;
  // Up to here, in bytes times hosts for each channel between them, a second trip costs more than
  // the bytes that it saves (per rank, over all links).
  std::uint16_t small_between_hosts_kib = 64;

  std::size_t block_bytes() const { return std::size_t{block_kib} * 1024; }
  std::size_t small_bytes() const { return std::size_t{small_kib} * 1024; }
  std::size_t small_between_hosts_bytes() const {
    return std::size_t{small_between_hosts_kib} * 1024;
  }
  bool operator==(const AllreduceCut&) const = default;
};

// What a bucket tells those who run it.
struct BucketTuning {
  std::uint32_t cycle_time_us = 0;  // how long what is ready waits for more; 0: the engine decides
  AllreduceCut cut;

  bool operator==(const BucketTuning&) const = default;
};

struct Tuning {
  std::uint64_t fusion_threshold_bytes = 128UL << 20;
  BucketTuning bucket;
};

}  // namespace hvd
