// How the ranks of a set exchange a few bytes and agree on the result of an attempt, over the
// backend for host tensors.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/error.h"
#include "gpu/gpu.h"

namespace hvd {

// The ranks of a set, for the preparation of its routes over GPUs.
struct DeviceGroup {
  Gpu& gpu;
  Backend& host;                   // moves host tensors of the set
  Place place;                     // of this rank
  std::vector<std::string> names;  // of the ranks
};

// An allgather of the same number of bytes from every rank. It ends when the backend's bucket ends.
class HostAllgather {
 public:
  void begin(Backend& host, std::span<const std::byte> own, int size);
  std::span<const std::byte> of(int rank) const;
  // decode(a rank's bytes). Adds the rank to a BadMessage that `decode` throws.
  template <typename Decode>
  auto read(int rank, Decode&& decode) const {
    try {
      return decode(of(rank));
    } catch (const BadMessage& bad) {
      throw bad.from(rank);
    }
  }

 private:
  Request request_;
  Work work_;
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;
};

// A value that travels as it lies in memory, where any bits are valid.
template <typename Value>
Value read_as(std::span<const std::byte> bytes) {
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// The status of every rank at the end of an attempt, with bytes that the rank adds to it.
class StatusAgreement {
 public:
  // `problem`: of this rank; empty: none. `added`: the same number of bytes from each rank. Ends
  // when the backend's bucket ends.
  void send(Backend& host, const std::string& problem, int size,
            std::span<const std::byte> added = {});
  // The first problem, with the name of its rank; none if no rank had one. Throws BadMessage.
  std::optional<std::string> obstacle(const std::vector<std::string>& names) const;
  std::span<const std::byte> added_by(int rank) const;
  // Reads the status at the start of a rank's bytes. Throws BadMessage.
  static std::string read_problem(std::span<const std::byte> bytes);

 private:
  static constexpr std::size_t kProblemBytes = 256;  // of which the last is a zero

  HostAllgather statuses_;
};

// A preparation that the ranks of a set do together, step by step. No thread waits meanwhile. A
// step ends with a bucket of the host backend, with another negotiation, or when a device has
// finished.
class Negotiation {
 public:
  // `group` outlives this.
  explicit Negotiation(const DeviceGroup& group) : group_(group) {}

  // True at the end, and before the beginning. `blocked`: of the host backend, or is_polled.
  bool advance(PeerWait& blocked);

  bool has_begun() const { return has_begun_; }
  // Why they cannot; none if they can.
  const std::optional<std::string>& obstacle() const { return obstacle_; }

 protected:
  using Then = std::function<void()>;

  ~Negotiation() = default;

  // Adds the next step. When it ends, `then` is called, which may add another step.
  void after_bucket(Then then);
  void after(Negotiation& other, Then then);
  // If this rank has a problem, the step ends at once.
  void when(std::function<bool()> is_done, Then then);
  // All ranks learn whether any rank has a problem. `added`: as in StatusAgreement::send().
  void agree(Then then, std::span<const std::byte> added = {});
  // An error that `step` throws becomes this rank's problem.
  void attempt(const std::function<void()>& step);

  const DeviceGroup& group_;
  bool has_begun_ = false;
  std::string problem_;      // of this rank; empty: none
  bool has_failed_ = false;  // the problem was an error
  StatusAgreement agreement_;
  std::optional<std::string> obstacle_;

 private:
  using IsReady = std::function<bool(PeerWait& blocked)>;

  void next(IsReady is_ready, Then then);

  IsReady is_ready_;
  Then then_;  // null at the end
};

}  // namespace hvd
