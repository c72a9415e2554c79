// What all ranks of a set say at the end of something that each has tried, and what they have to
// show.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/host_gather.h"

namespace hvd {

class StatusAgreement {
 public:
  // `problem`: of this rank; empty: none. `shown`: as many bytes from each. Ends when the backend's
  // bucket does.
  void send(Backend& host, const std::string& problem, int size,
            std::span<const std::byte> shown = {});
  // The first problem, with the name of its rank; none if nobody had one. Throws BadMessage.
  std::optional<std::string> obstacle(const std::vector<std::string>& names) const;
  std::span<const std::byte> shown_by(int rank) const;
  // What a rank's bytes begin with. Throws BadMessage.
  static std::string read_problem(std::span<const std::byte> bytes);

 private:
  static constexpr std::size_t kProblemBytes = 256;  // of which the last is a zero

  HostGather gather_;
};

}  // namespace hvd
