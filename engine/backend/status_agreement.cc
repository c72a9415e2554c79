#include "backend/status_agreement.h"

#include <utility>

#include "core/text.h"
#include "core/wire.h"

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

bool Negotiation::advance(PeerWait& blocked) {
  while (then_) {
    if (!is_ready_(blocked)) return false;
    std::exchange(then_, nullptr)();
  }
  return true;
}

void Negotiation::next(IsReady is_ready, Then then) {
  has_begun_ = true;
  is_ready_ = std::move(is_ready);
  then_ = std::move(then);
}

void Negotiation::after_bucket(Then then) {
  next([this](PeerWait& blocked) { return group_.host.advance(blocked); }, std::move(then));
}

void Negotiation::after(Negotiation& other, Then then) {
  next([&other](PeerWait& blocked) { return other.advance(blocked); }, std::move(then));
}

void Negotiation::when(std::function<bool()> is_done, Then then) {
  const auto is_ready = [this, is_done = std::move(is_done)](PeerWait& blocked) {
    bool is_over = !problem_.empty();
    attempt([&] { is_over = is_over || is_done(); });
    if (is_over || !problem_.empty()) return true;
    blocked = {.is_polled = true};
    return false;
  };
  next(is_ready, std::move(then));
}

void Negotiation::agree(Then then, std::span<const std::byte> added) {
  agreement_.send(group_.host, problem_, group_.place.size, added);
  after_bucket([this, then = std::move(then)] {
    obstacle_ = agreement_.obstacle(group_.names);
    then();
  });
}

void Negotiation::attempt(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    problem_ = error.what();
    has_failed_ = true;
  }
}

}  // namespace hvd
