#include "runtime/news.h"

#include <cstring>

namespace hvd {

namespace {

struct Head {
  std::uint32_t liveness;
  std::int32_t code;
  std::int32_t rank;
  std::uint32_t note;
};

// Of notes, to one leader; what matters more must not wait behind them.
constexpr std::uint64_t kMostOnTheWay = 4U << 20;

std::vector<std::byte> write(const NewsItem& item) {
  const Head head{.liveness = static_cast<std::uint32_t>(item.liveness),
                  .code = static_cast<std::int32_t>(item.alarm.code),
                  .rank = item.alarm.rank,
                  .note = static_cast<std::uint32_t>(item.note)};
  std::vector<std::byte> message(sizeof head + item.alarm.text.size());
  std::memcpy(message.data(), &head, sizeof head);
  std::memcpy(message.data() + sizeof head, item.alarm.text.data(), item.alarm.text.size());
  return message;
}

NewsItem read(std::span<const std::byte> message) {
  Head head{};
  if (message.size() < sizeof head) return {};
  std::memcpy(&head, message.data(), sizeof head);
  const auto text = message.subspan(sizeof head);
  return {.liveness = static_cast<Liveness>(head.liveness),
          .alarm = {.code = static_cast<ErrorCode>(head.code),
                    .rank = head.rank,
                    .text = {reinterpret_cast<const char*>(text.data()), text.size()}},
          .note = static_cast<NoteKind>(head.note)};
}

}  // namespace

News::News(const std::vector<LeaderLink>& links, const std::vector<int>& leaders) {
  for (const LeaderLink& link : links) {
    links_.emplace_back(link.fd, leaders[static_cast<std::size_t>(link.host)], link.seals,
                        "news link");
  }
}

void News::tell_departure(int rank, Liveness liveness) {
  const std::lock_guard guard(mutex_);
  if (told_.insert(rank).second) tell({.liveness = liveness, .alarm = {.rank = rank, .text = {}}});
}

void News::tell_alarm(const Alarm& alarm) {
  const std::lock_guard guard(mutex_);
  if (has_told_alarm_) return;
  has_told_alarm_ = true;
  tell({.liveness = Liveness::kRunning, .alarm = alarm});
}

void News::tell(const NewsItem& item) {
  const std::vector<std::byte> message = write(item);
  for (MessageLink& link : links_) link.post(message);
}

bool News::send_note(int leader, NoteKind kind, int rank, const std::string& text) {
  const std::lock_guard guard(mutex_);
  for (MessageLink& link : links_) {
    if (link.rank() != leader) continue;
    link.flush();
    if (link.unsent_bytes() > kMostOnTheWay || !link.loss().empty()) return false;
    link.post(write({.alarm = {.rank = rank, .text = text}, .note = kind}));
    return true;
  }
  return false;
}

void News::close_copies() {
  for (MessageLink& link : links_) link.close_copy();
}

std::vector<int> News::descriptors() const {
  std::vector<int> descriptors;
  for (const MessageLink& link : links_) descriptors.push_back(link.descriptor());
  return descriptors;
}

bool News::hear(std::size_t index, const std::function<void(const NewsItem&)>& use,
                std::string& loss) {
  std::vector<NewsItem> items;
  {
    const std::lock_guard guard(mutex_);
    links_[index].receive([&](auto message) { items.push_back(read(message)); });
    loss = links_[index].loss();
  }
  for (const NewsItem& item : items) use(item);
  return loss.empty();
}

}  // namespace hvd
