#include "control/relay.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "transport/posts.h"

namespace hvd {

namespace {

// An answer may take so long on a slow or lossy network.
constexpr auto kAnswerTime = std::chrono::milliseconds(500);

[[noreturn]] void refuse_kind(MessageKind kind, const char* expected) {
  refuse(name_of(kind), "kind", std::to_string(static_cast<int>(kind)), expected);
}

// A BadMessage gets the rank that sent the message.
template <typename Use>
bool receive(MessageLink& link, Use&& use) {
  return link.receive([&](std::span<const std::byte> message) {
    try {
      use(message);
    } catch (const BadMessage& bad) {
      throw bad.from(link.rank());
    }
  });
}

}  // namespace

Relay::Relay(NegotiationTable& negotiation, std::optional<MessageLink> parent,
             std::vector<Child> children)
    : negotiation_(negotiation),
      parent_(std::move(parent)),
      children_(std::move(children)),
      order_(children_.size()) {}

bool Relay::pump() {
  bool moved = false;
  for (Child& child : children_) {
    moved |= receive(child.link, [&](auto message) { hear_child(child, message); });
  }
  if (parent_) moved |= receive(*parent_, [&](auto message) { hear_parent(message); });
  refuse_altered();
  if (has_work()) {
    moved = true;
    parent_ ? forward() : announce();
  }
  for (Child& child : children_) {
    moved |= answer_asked(child);
    child.link.flush();
  }
  if (parent_) parent_->flush();
  note_busy();
  return moved;
}

void Relay::refuse_altered() const {
  const auto check = [](const MessageLink& link) {
    if (link.is_altered()) throw LinkLost(link.rank(), link.loss(), true);
  };
  if (parent_) check(*parent_);
  for (const Child& child : children_) check(child.link);
}

bool Relay::has_work() const {
  return parent_ ? negotiation_.has_outgoing() || awaited_.has_questions()
                 : !children_.empty() && negotiation_.has_unannounced();
}

// Over a broken link no number comes any more. A bucket that needs one ends with an error.
void Relay::note_busy() {
  is_busy_.store(
      (parent_ && parent_->has_unsent()) ||
      std::ranges::any_of(children_, [](const Child& child) { return child.link.has_unsent(); }) ||
      (order_.is_open() && !loss()));
}

int Relay::late_leaf() const {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].is_leaf && order_.awaits(i)) return children_[i].link.rank();
  }
  return -1;
}

std::optional<std::pair<int, std::string>> Relay::loss() const {
  if (parent_ && !parent_->loss().empty()) return {{parent_->rank(), parent_->loss()}};
  for (const Child& child : children_) {
    if (!child.link.loss().empty()) return {{child.link.rank(), child.link.loss()}};
  }
  return std::nullopt;
}

void Relay::add_polls(std::vector<pollfd>& polls) const {
  if (parent_) parent_->add_poll(polls);
  for (const Child& child : children_) child.link.add_poll(polls);
}

void Relay::close() {
  if (parent_) parent_->close();
  for (Child& child : children_) child.link.close();
  is_busy_.store(false);
}

void Relay::close_copies() {
  if (parent_) parent_->close_copy();
  for (Child& child : children_) child.link.close_copy();
}

void Relay::hear_child(Child& child, std::span<const std::byte> message) {
  switch (kind_of(message)) {
    case MessageKind::kArrived:
      return merge_ids(child, message);
    case MessageKind::kSpelled: {
      const Arrivals arrival = read_arrival(message, scope(child.ranks));
      const SharedLock lock = negotiation_.lock();
      negotiation_.merge(arrival);
      return;
    }
    case MessageKind::kWhoLacks:
      return answer_who_lacks(child, read_lacking(message, scope()).key);
    case MessageKind::kMayCome:
      if (child.asked.size() < kMaxSlots) child.asked.insert(read_name(message));
      return;
    case MessageKind::kOrdered:
      read_ordered(message);
      return negotiation_.order_launches();
    case MessageKind::kProposed:
      order_.answer(static_cast<std::size_t>(&child - children_.data()), read_launch(message));
      return pass_agreed();
    default:
      refuse_kind(kind_of(message),
                  "a message to a parent: arrivals, a question, or about the order of launches");
  }
}

void Relay::merge_ids(Child& child, std::span<const std::byte> message) {
  std::vector<std::uint32_t> unknown;
  {
    const std::vector<std::uint32_t> ids = read_ids(message);
    const SharedLock lock = negotiation_.lock();
    for (const std::uint32_t id : ids) {
      const auto slot = slot_of(id);
      if (!slot || !negotiation_.merge_repeated(*slot, id, child.ranks)) unknown.push_back(id);
    }
  }
  if (!unknown.empty()) child.link.post(write_ids(MessageKind::kAskFor, unknown));
}

void Relay::hear_parent(std::span<const std::byte> message) {
  switch (kind_of(message)) {
    case MessageKind::kBucket:
    case MessageKind::kNumbered: {
      const std::vector<BucketEntry> entries = read_bucket(message, scope());
      pass_down(message);
      return append_bucket(entries, kind_of(message) == MessageKind::kNumbered);
    }
    case MessageKind::kLaunch:
      return settle(read_launch(message));
    case MessageKind::kTuning:
      tuning_ = read_tuning(message);
      return pass_down(message);
    case MessageKind::kAskFor:
      return spell(read_ids(message));
    case MessageKind::kLacking:
      return keep_answer(read_lacking(message, scope()));
    case MessageKind::kAwaited:
      return awaited_.keep_answer(read_name(message));
    default:
      refuse_kind(kind_of(message),
                  "a message to a child: a bucket, its launch, tuning, ids to spell or an answer");
  }
}

void Relay::pass_down(std::span<const std::byte> message) {
  for (Child& child : children_) child.link.post(message);
}

// Keeps at most one answer for each name that can wait here.
void Relay::keep_answer(Lacking lacking) {
  if (inquiries_.size() >= kMaxSlots && !inquiries_.contains(lacking.key)) return;
  Inquiry& inquiry = inquiries_[lacking.key];
  inquiry.is_answered = true;
  inquiry.ranks = std::move(lacking.ranks);
}

// The table above asks for the names of these ids, which it does not know.
void Relay::spell(std::span<const std::uint32_t> ids) {
  for (const std::uint32_t id : ids) {
    std::optional<Arrivals> arrival;
    {
      const SharedLock lock = negotiation_.lock();
      const auto slot = slot_of(id);
      if (!slot) refuse(name_of(MessageKind::kAskFor), "ids", std::to_string(id), "known ids");
      arrival = negotiation_.arrival_of(*slot);
    }
    if (arrival) parent_->post(write_arrival(*arrival));
  }
}

void Relay::append_bucket(std::span<const BucketEntry> entries, bool is_numbered) {
  inquiries_.clear();
  forget_asked();
  std::uint32_t index = 0;
  {
    const SharedLock lock = negotiation_.lock();
    std::uint32_t count = 0;
    for (const BucketEntry& entry : entries) {
      if (const auto* run = std::get_if<IdRun>(&entry)) {
        append_run(*run);
        count += run->count;
      } else {
        append_decision(std::get<Decision>(entry));
        ++count;
      }
    }
    index = negotiation_.close_bucket(count, tuning_, is_numbered);
  }
  if (is_numbered) begin_launch(index);
}

// The bucket has the proposal of this host.
void Relay::begin_launch(std::uint32_t bucket) {
  order_.begin({.bucket = bucket, .number = negotiation_.launch_of(bucket).number});
  pass_agreed();
}

// What this host and the hosts below agree on goes up. At the root it is final.
void Relay::pass_agreed() {
  while (const auto agreed = order_.next_agreed()) {
    if (parent_) {
      parent_->post(write_launch(MessageKind::kProposed, *agreed));
    } else {
      settle(*agreed);
    }
  }
}

void Relay::settle(const LaunchNumber& launch) {
  order_.end(launch);
  negotiation_.settle_launch(launch.bucket, launch.number);
  pass_down(write_launch(MessageKind::kLaunch, launch));
}

void Relay::append_run(const IdRun& run) {
  for (std::uint32_t i = 0; i < run.count; ++i) {
    const auto slot = slot_of(run.first + i);
    if (!slot) refuse("bucket", "ids", std::to_string(run.first + i), "ids that this host knows");
    negotiation_.append_repeated(*slot);
  }
}

// An id has one name. The name that it had before is forgotten here.
void Relay::append_decision(const Decision& decision) {
  const auto known = slot_of(decision.wire_id);
  if (known && known != negotiation_.find(decision.key)) {
    refuse("bucket", "wire_id", std::to_string(decision.wire_id), "an id of no other name");
  }
  name_slot(decision.wire_id, negotiation_.append(decision));
}

void Relay::forward() {
  std::vector<std::uint32_t> ids;
  std::vector<Arrivals> arrivals;
  {
    const SharedLock lock = negotiation_.lock();
    while (const auto slot = negotiation_.next_outgoing()) {
      if (negotiation_.is_repeated(*slot) && slot_of(negotiation_.wire_id(*slot)) == slot) {
        ids.push_back(negotiation_.wire_id(*slot));
      } else if (auto arrival = negotiation_.arrival_of(*slot)) {
        arrivals.push_back(std::move(*arrival));
      }
    }
  }
  // Read after the outbox and sent before the arrivals, some of which may have to be ordered. Each
  // rank's last arrival for a name comes this way, so the root knows in time.
  if (!has_told_order_ && negotiation_.orders_launches()) {
    has_told_order_ = true;
    parent_->post(write_ordered());
  }
  std::ranges::sort(ids);
  if (!ids.empty()) parent_->post(write_ids(MessageKind::kArrived, ids));
  for (const Arrivals& arrival : arrivals) parent_->post(write_arrival(arrival));
  for (const NameKey& key : awaited_.take_questions()) {
    parent_->post(write_name(MessageKind::kMayCome, key));
  }
}

void Relay::announce() {
  if (parent_ || children_.empty()) return;
  if (negotiation_.has_unannounced()) forget_asked();
  while (negotiation_.has_unannounced()) {
    entries_.clear();
    const std::uint32_t index = negotiation_.next_unannounced();
    const bool is_numbered = negotiation_.launch_of(index).number != 0;
    const BucketTuning tuning = negotiation_.tuning_of(index);
    if (std::exchange(tuning_, tuning) != tuning) {
      pass_down(write_tuning(tuning));
    }
    {
      const SharedLock lock = negotiation_.lock();
      negotiation_.bucket_items(index, items_);
      for (const BucketItem& item : items_) {
        if (negotiation_.is_repeated(item)) {
          add_id(entries_, negotiation_.wire_id(item.slot));
          continue;
        }
        if (negotiation_.wire_id(item.slot) == 0) {
          negotiation_.set_wire_id(item.slot, ++last_id_);
          name_slot(last_id_, item.slot);
        }
        entries_.emplace_back(negotiation_.decision_of(item));
      }
      negotiation_.announced();
    }
    pass_down(write_bucket(is_numbered ? MessageKind::kNumbered : MessageKind::kBucket, entries_));
    if (is_numbered) begin_launch(index);
  }
  note_busy();
}

std::optional<std::uint32_t> Relay::slot_of(std::uint32_t id) const {
  const auto found = slots_.find(id);
  if (found == slots_.end() || negotiation_.wire_id(found->second) != id) return std::nullopt;
  return found->second;
}

// Under the table's lock. A slot may get another name; its old id is removed some time later.
void Relay::name_slot(std::uint32_t id, std::uint32_t slot) {
  slots_[id] = slot;
  if (slots_.size() < prune_at_) return;
  std::erase_if(slots_,
                [&](const auto& pair) { return negotiation_.wire_id(pair.second) != pair.first; });
  prune_at_ = std::max<std::size_t>(4096, 2 * slots_.size());
}

void Relay::report_waiting(std::uint32_t slot, const NameKey& key) {
  if (!parent_) return;
  const auto [inquiry, is_first] = inquiries_.try_emplace(key);
  Inquiry& own = inquiry->second;
  const std::int64_t now = now_ns();
  if (!is_first && now - own.asked_ns < Nanoseconds(kAnswerTime).count()) return;
  // A leader with an operation in flight listens and answers. A leader that does not answer has
  // none.
  if (!is_first && !own.is_answered) own.ranks = {parent_->rank()};
  own.is_answered = false;
  own.asked_ns = now;
  std::optional<Arrivals> arrivals;
  {
    const SharedLock lock = negotiation_.lock();
    if (negotiation_.is_partial(slot)) arrivals = negotiation_.arrival_of(slot);
  }
  if (arrivals) parent_->post(write_arrival(*arrivals));
  parent_->post(write_lacking(MessageKind::kWhoLacks, {.key = key, .ranks = {}}));
}

std::vector<int> Relay::lacking(const NameKey& key) const {
  const auto found = inquiries_.find(key);
  return found == inquiries_.end() ? std::vector<int>{} : found->second.ranks;
}

// Only for names that no rank of this host has submitted. For other names this host warns itself.
void Relay::answer_who_lacks(Child& child, const NameKey& key) {
  Lacking answer{.key = key, .ranks = {}};
  {
    const SharedLock lock = negotiation_.lock();
    if (const auto slot = negotiation_.find(key)) answer.ranks = negotiation_.lacking_ranks(*slot);
  }
  child.link.post(write_lacking(MessageKind::kLacking, answer));
}

// Names come again, so an answer must not outlive the round that it is about. Here it does not:
// ranks above have submitted the round, and its bucket, which comes behind the answer on the same
// link, makes this table forget the answer first. Before that bucket, only a rank that has
// submitted the round itself could mistake it for the next one, and such a rank is not asked for.
// A table that forgets a question has sent a bucket, so the table below forgets that it has asked.
bool Relay::is_awaited(const NameKey& key) {
  const SharedLock lock = negotiation_.lock();
  if (negotiation_.is_awaited(key)) return true;
  return parent_ && !negotiation_.has_submitted(key) && awaited_.ask(key);
}

// True when anything was sent.
bool Relay::answer_asked(Child& child) {
  if (child.asked.empty()) return false;
  std::vector<NameKey> awaited;
  {
    const SharedLock lock = negotiation_.lock();
    for (const NameKey& key : child.asked) {
      if (negotiation_.is_awaited_from(key, child.ranks)) awaited.push_back(key);
    }
  }
  for (const NameKey& key : awaited) {
    child.asked.erase(key);
    child.link.post(write_name(MessageKind::kAwaited, key));
  }
  return !awaited.empty();
}

void Relay::forget_asked() {
  awaited_.forget();
  for (Child& child : children_) child.asked.clear();
}

std::uint64_t Relay::messages_sent() const {
  std::uint64_t sum = parent_ ? parent_->messages_sent() : 0;
  for (const Child& child : children_) sum += child.link.messages_sent();
  return sum;
}

std::uint64_t Relay::bytes_sent() const {
  std::uint64_t sum = parent_ ? parent_->bytes_sent() : 0;
  for (const Child& child : children_) sum += child.link.bytes_sent();
  return sum;
}

}  // namespace hvd
