// The leader of a host relays messages between the tables of a process set: complete items go up,
// decisions come down.
//
// Runs in the progress role of the leader, the lowest member of the set on its host. Cost of a step
// in the steady state: one message up and one down each link, and log2(hosts) links in a row. If
// the ids of the tensors follow one another, the size of the messages does not depend on their
// number.
//
// The first time, a name is spelled: its key, requests and rows are sent. The root gives it a wire
// id, and from then on only the id is sent. A table that does not know an id asks for the name.
// When a name waits for long, its leader asks up the tree which ranks have not submitted it. A rank
// that would take part in what another one begins asks the table above whether a rank has.
//
// A bucket of GPU tensors of an ordered set gets its number while it is prepared (see
// launch_order.h). That costs one more message up and one down each link.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "control/awaited_names.h"
#include "control/negotiation_table.h"
#include "control/tree_messages.h"
#include "transport/message_link.h"

namespace hvd {

class Relay {
 public:
  struct Child {
    MessageLink link;
    std::vector<int> ranks;  // set ranks of its host and the hosts below it
    bool is_leaf = false;    // no host is below it
    std::unordered_set<NameKey, NameKeyHash> asked = {};  // for these, until a rank submits them
  };

  Relay(NegotiationTable& negotiation, std::optional<MessageLink> parent,
        std::vector<Child> children);

  // Reads, merges, forwards and announces messages. True when anything moved. Throws LinkLost if a
  // record was altered on its way. Other losses matter only when the link is needed. Throws
  // BadMessage, with the set rank of the sender, for a message that is not valid. The world is over
  // then.
  bool pump();
  // Tells the tables below of buckets that were cut here, before this rank runs them.
  void announce();
  // Whether this host has messages to pass on.
  bool has_work() const;
  // Any thread: whether there are messages that a link has not taken yet, or buckets whose number
  // is still to come.
  bool is_busy() const { return is_busy_.load(); }
  // Any thread, for the leader's own rank: whether another rank has submitted the name and this one
  // has not, as far as this table and the one above know. That one is asked, so call it again.
  bool is_awaited(const NameKey& key);
  // Any thread: see AwaitedNames.
  bool listen() { return awaited_.listen(); }
  bool is_listening() const { return awaited_.is_listening(); }
  // The set rank of a leader with no host below it that has not proposed the oldest number; -1:
  // none.
  int late_leaf() const;
  // A broken link: the set rank at its other end, and the reason. It matters only when the link is
  // needed.
  std::optional<std::pair<int, std::string>> loss() const;
  void add_polls(std::vector<pollfd>& polls) const;
  // Ends all links, for good.
  void close();
  void close_copies();  // in a forked child

  // Call it when a slot waits for long. Tells the table above which ranks have arrived, and asks
  // which have not. lacking() has the answer some time later.
  void report_waiting(std::uint32_t slot, const NameKey& key);
  // The ranks of other hosts that are known not to have submitted the name.
  std::vector<int> lacking(const NameKey& key) const;

  std::uint64_t messages_sent() const;
  std::uint64_t bytes_sent() const;

 private:
  void hear_child(Child& child, std::span<const std::byte> message);
  void hear_parent(std::span<const std::byte> message);
  void merge_ids(Child& child, std::span<const std::byte> message);
  void answer_who_lacks(Child& child, const NameKey& key);
  void spell(std::span<const std::uint32_t> ids);
  void append_bucket(std::span<const BucketEntry> entries, bool is_numbered);
  void append_run(const IdRun& run);
  void append_decision(const Decision& decision);
  void begin_launch(std::uint32_t bucket);
  void pass_agreed();
  void settle(const LaunchNumber& launch);
  void keep_answer(Lacking lacking);
  void pass_down(std::span<const std::byte> message);
  TreeScope scope(std::span<const int> speakers = {}) const {
    return {.size = negotiation_.size(), .members = negotiation_.members(), .speakers = speakers};
  }
  void forward();
  bool answer_asked(Child& child);
  void forget_asked();
  void refuse_altered() const;
  void note_busy();
  std::optional<std::uint32_t> slot_of(std::uint32_t id) const;
  void name_slot(std::uint32_t id, std::uint32_t slot);

  struct Inquiry {
    bool is_answered = false;
    std::int64_t asked_ns = 0;
    std::vector<int> ranks;
  };

  NegotiationTable& negotiation_;
  std::optional<MessageLink> parent_;
  std::vector<Child> children_;
  std::unordered_map<std::uint32_t, std::uint32_t> slots_;  // by wire id
  std::uint32_t last_id_ = 0;                               // of the root's table
  std::size_t prune_at_ = 4096;
  std::unordered_map<NameKey, Inquiry, NameKeyHash> inquiries_;
  AwaitedNames awaited_;
  LaunchOrder order_;
  bool has_told_order_ = false;  // to the table above
  std::atomic<bool> is_busy_{false};
  BucketTuning tuning_;  // of the last bucket that was sent down
  std::vector<BucketItem> items_;
  std::vector<BucketEntry> entries_;
};

}  // namespace hvd
