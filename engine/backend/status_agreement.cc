#include "backend/status_agreement.h"

#include "core/text.h"
#include "core/wire_reader.h"

namespace hvd {

void HostAllgather::begin(Backend& host, std::span<const std::byte> own, int size) {
  own_.assign(own.begin(), own.end());
  all_.resize(own_.size() * static_cast<std::size_t>(size));
  request_ = {};
  request_.kind = Kind::kAllgather;
  request_.dtype = Dtype::kUint8;
  request_.dims_count = 1;
  request_.dims[0] = static_cast<std::int64_t>(own_.size());
  work_ = {.request = &request_,
           .in = own_.data(),
           .out = all_.data(),
           .rows = std::vector(static_cast<std::size_t>(size), request_.dims[0]),
           .splits = {}};
  host.begin(Kind::kAllgather, {&work_, 1}, {});
}

std::span<const std::byte> HostAllgather::of(int rank) const {
  return std::span(all_).subspan(static_cast<std::size_t>(rank) * own_.size(), own_.size());
}

std::string StatusAgreement::read_problem(std::span<const std::byte> bytes) {
  return WireReader("status", bytes).get_cells("problem", kProblemBytes);
}

void StatusAgreement::send(Backend& host, const std::string& problem, int size,
                           std::span<const std::byte> added) {
  char own[kProblemBytes] = {};
  copy_text(own, problem);
  const auto status = std::as_bytes(std::span(own));
  std::vector<std::byte> bytes(status.begin(), status.end());
  bytes.insert(bytes.end(), added.begin(), added.end());
  statuses_.begin(host, bytes, size);
}

std::optional<std::string> StatusAgreement::obstacle(const std::vector<std::string>& names) const {
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const std::string problem = statuses_.read(static_cast<int>(rank), read_problem);
    if (!problem.empty()) return names[rank] + ": " + problem;
  }
  return std::nullopt;
}

std::span<const std::byte> StatusAgreement::added_by(int rank) const {
  return statuses_.of(rank).subspan(kProblemBytes);
}

}  // namespace hvd
