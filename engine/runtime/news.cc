#include "runtime/news.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/wire.h"

namespace hvd {

namespace {

constexpr int kLivenessCount = 4;
constexpr int kNoteCount = 6;
constexpr int kErrorCodes = static_cast<int>(ErrorCode::kInternal);

// The most bytes of unsent notes to one leader: departures and alarms must not wait for more.
constexpr std::uint64_t kMostOnTheWay = 4U << 20;
// An answer has one or two lines and a stack. A chunk may have all events of a recorder.
constexpr std::size_t kMostAnswerBytes = 64U << 10;
constexpr std::size_t kMostTraceBytes = 16U << 20;

bool is_alarm(const NewsItem& item) {
  return item.note == NoteKind::kNone && item.liveness == Liveness::kRunning;
}

std::size_t most_bytes(const NewsItem& item) {
  switch (item.note) {
    case NoteKind::kNone:
      return is_alarm(item) ? Alarms::kMostTextBytes : 0;
    case NoteKind::kAnswer:
      return kMostAnswerBytes;
    case NoteKind::kTrace:
      return kMostTraceBytes;
    default:
      return 0;
  }
}

void check_rank(const WireReader& reader, int rank, const std::vector<int>& ranks,
                const char* expected) {
  if (std::ranges::find(ranks, rank) != ranks.end()) return;
  reader.refuse("rank", "rank " + std::to_string(rank), expected);
}

void check_subject(const WireReader& reader, const NewsItem& item, const NewsScope& scope) {
  const int rank = item.alarm.rank;
  switch (item.note) {
    case NoteKind::kNone:
      if (!is_alarm(item)) break;
      if (rank >= 0 && rank < scope.size) return;
      reader.refuse("rank", "rank " + std::to_string(rank),
                    "a rank of a world of " + std::to_string(scope.size));
    case NoteKind::kQuestion:
      return check_rank(reader, rank, scope.own, "a rank of the host that is asked");
    case NoteKind::kBeginTrace:
    case NoteKind::kEndTrace:
      if (scope.sender.front() != 0)
        reader.refuse("note", "a request for traces", "such a request only of rank 0");
      if (rank == 0 || rank == 1) return;
      reader.refuse("rank", std::to_string(rank), "0, or 1 for events from now on");
    default:
      break;
  }
  check_rank(reader, rank, scope.sender, "a rank of its own host");
}

// The ranks must rise, so that none occurs twice.
void check_ranks(const WireReader& reader, const std::vector<std::int32_t>& ranks, int size) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int least = i == 0 ? 0 : ranks[i - 1] + 1;
    if (ranks[i] >= least && ranks[i] < size) continue;
    reader.refuse("ranks", std::to_string(ranks[i]),
                  "ranks of a world of " + std::to_string(size) + " in rising order");
  }
}

}  // namespace

std::vector<std::byte> write_news(const NewsItem& item) {
  WireWriter writer;
  writer.put(item.liveness);
  writer.put(item.note);
  writer.put(item.alarm.code);
  writer.put(item.alarm.rank);
  if (is_alarm(item)) {
    writer.put_list(std::span<const std::int32_t>(item.alarm.ranks));
    writer.put_list(std::span<const char>(item.alarm.operation));
  }
  writer.put_bytes(item.alarm.text.data(), item.alarm.text.size());
  return writer.take();
}

NewsItem read_news(std::span<const std::byte> message, const NewsScope& scope) {
  WireReader reader("news", message);
  NewsItem item;
  item.liveness = reader.get_enum<Liveness>("liveness", kLivenessCount);
  item.note = reader.get_enum<NoteKind>("note", kNoteCount);
  item.alarm.code = static_cast<ErrorCode>(reader.get<std::int32_t>("code", 1, kErrorCodes));
  item.alarm.rank = reader.get<std::int32_t>("rank");
  check_subject(reader, item, scope);
  if (is_alarm(item)) {
    item.alarm.ranks = reader.get_list<std::int32_t>("ranks", static_cast<std::size_t>(scope.size));
    check_ranks(reader, item.alarm.ranks, scope.size);
    item.alarm.operation = reader.get_text("operation", Alarms::kMostOperationBytes);
  }
  if (reader.rest_bytes() > most_bytes(item)) {
    reader.refuse("text", std::to_string(reader.rest_bytes()) + " bytes",
                  "at most " + std::to_string(most_bytes(item)));
  }
  const auto text = reader.get_bytes("text", reader.rest_bytes());
  const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
  item.alarm.text = item.note == NoteKind::kTrace ? std::string(view) : printable(view);
  return item;
}

News::News(const std::vector<LeaderLink>& links, const std::vector<std::vector<int>>& hosts,
           int rank) {
  const auto is_own = [rank](const auto& host) {
    return std::ranges::find(host, rank) != host.end();
  };
  const auto own = std::ranges::find_if(hosts, is_own);
  int size = 0;
  for (const std::vector<int>& host : hosts) size += static_cast<int>(host.size());
  for (const LeaderLink& link : links) {
    const std::vector<int>& sender = hosts[static_cast<std::size_t>(link.host)];
    links_.emplace_back(link.fd, sender.front(), link.seals, "news link");
    scopes_.push_back({.size = size, .sender = sender, .own = *own});
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
  const std::vector<std::byte> message = write_news(item);
  for (MessageLink& link : links_) link.post(message);
}

bool News::send_note(int leader, NoteKind kind, int rank, const std::string& text) {
  const std::lock_guard guard(mutex_);
  for (MessageLink& link : links_) {
    if (link.rank() != leader) continue;
    link.flush();
    if (link.unsent_bytes() > kMostOnTheWay || !link.loss().empty()) return false;
    link.post(write_news({.alarm = {.rank = rank, .text = text}, .note = kind}));
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
  // Items before a bad one are still used.
  std::vector<NewsItem> items;
  std::optional<BadMessage> bad;
  {
    const std::lock_guard guard(mutex_);
    try {
      links_[index].receive(
          [&](auto message) { items.push_back(read_news(message, scopes_[index])); });
    } catch (const BadMessage& found) {
      bad = found.from(leader(index));
    }
    loss = links_[index].loss();
  }
  for (const NewsItem& item : items) use(item);
  if (bad) throw *bad;
  return loss.empty();
}

}  // namespace hvd
