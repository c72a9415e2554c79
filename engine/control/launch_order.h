// Which number each bucket of GPU tensors gets where a set spans hosts, as the leader of a host
// sees it (after Skeen: the highest of all proposals wins).
//
// Each host proposes a number for a bucket when it learns of it. The proposals go up the tree: a
// leader sends the highest one of its host and the hosts below. The root sends the final number
// down. Each link keeps the order of messages, so buckets are answered in the order of their
// indices. Pure; the relay sends what this class returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace hvd {

// No number is higher. A table uses the bits above.
inline constexpr std::uint64_t kMostLaunch = std::uint64_t{1} << 62;

struct LaunchNumber {
  std::uint32_t bucket = 0;  // its index
  std::uint64_t number = 0;

  bool operator==(const LaunchNumber&) const = default;
};

class LaunchOrder {
 public:
  explicit LaunchOrder(std::size_t children) : answered_(children) {}

  // A numbered bucket is known here, with the proposal of this host.
  void begin(const LaunchNumber& own) { open_.push_back(own); }
  // A child has sent the highest proposal of its hosts. Throws BadMessage if none is awaited.
  void answer(std::size_t child, const LaunchNumber& proposed);
  // The next bucket that all children have answered, with the highest proposal from here on down.
  std::optional<LaunchNumber> next_agreed();
  // The final number of a bucket that next_agreed() has returned. Throws BadMessage if it cannot
  // be.
  void end(const LaunchNumber& last);

  // Whether some bucket has no final number here.
  bool is_open() const { return !open_.empty() || !agreed_.empty(); }
  // Whether the child has not answered the oldest bucket.
  bool awaits(std::size_t child) const { return !open_.empty() && answered_[child] == 0; }

 private:
  std::deque<LaunchNumber> open_;      // some child has not answered; the highest proposals so far
  std::deque<LaunchNumber> agreed_;    // the final number is not known
  std::vector<std::size_t> answered_;  // by child: how many of open_, from the front on
};

}  // namespace hvd
