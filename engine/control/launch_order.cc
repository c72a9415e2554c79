#include "control/launch_order.h"

#include <algorithm>
#include <string>

#include "control/tree_messages.h"
#include "core/error.h"

namespace hvd {

namespace {

void check_bucket(MessageKind kind, std::uint32_t found, const LaunchNumber* next) {
  if (next != nullptr && next->bucket == found) return;
  refuse(name_of(kind), "bucket", std::to_string(found),
         next == nullptr ? "no bucket, since none waits for it"
                         : std::to_string(next->bucket) + ", the next one that waits for it");
}

}  // namespace

void LaunchOrder::answer(std::size_t child, const LaunchNumber& proposed) {
  std::size_t& answered = answered_[child];
  LaunchNumber* const next = answered < open_.size() ? &open_[answered] : nullptr;
  check_bucket(MessageKind::kProposed, proposed.bucket, next);
  next->number = std::max(next->number, proposed.number);
  ++answered;
}

std::optional<LaunchNumber> LaunchOrder::next_agreed() {
  const auto is_silent = [](std::size_t answered) { return answered == 0; };
  if (open_.empty() || std::ranges::any_of(answered_, is_silent)) return std::nullopt;
  for (std::size_t& answered : answered_) --answered;
  agreed_.push_back(open_.front());
  open_.pop_front();
  return agreed_.back();
}

void LaunchOrder::end(const LaunchNumber& last) {
  check_bucket(MessageKind::kLaunch, last.bucket, agreed_.empty() ? nullptr : &agreed_.front());
  const std::uint64_t least = agreed_.front().number;
  if (last.number < least) {
    refuse(name_of(MessageKind::kLaunch), "number", std::to_string(last.number),
           "at least " + std::to_string(least) + ", which was proposed");
  }
  agreed_.pop_front();
}

}  // namespace hvd
