#include "backend/status_agreement.h"

#include "core/text.h"
#include "core/wire_reader.h"

namespace hvd {

std::string StatusAgreement::read_problem(std::span<const std::byte> bytes) {
  return WireReader("verdict", bytes).get_cells("problem", kProblemBytes);
}

void StatusAgreement::send(Backend& host, const std::string& problem, int size,
                           std::span<const std::byte> shown) {
  char own[kProblemBytes] = {};
  copy_text(own, problem);
  const auto verdict = std::as_bytes(std::span(own));
  std::vector<std::byte> bytes(verdict.begin(), verdict.end());
  bytes.insert(bytes.end(), shown.begin(), shown.end());
  gather_.begin(host, bytes, size);
}

std::optional<std::string> StatusAgreement::obstacle(const std::vector<std::string>& names) const {
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const std::string problem = gather_.read(static_cast<int>(rank), read_problem);
    if (!problem.empty()) return names[rank] + ": " + problem;
  }
  return std::nullopt;
}

std::span<const std::byte> StatusAgreement::shown_by(int rank) const {
  return gather_.of(rank).subspan(kProblemBytes);
}

}  // namespace hvd
