// The leader of a host relays messages between the tables of a process set: complete items go up,
// decisions come down.
//
// Runs in the progress role of the leader, the lowest member of the set on its host. Cost of a step
// in the steady state: one message up and one down each link, whose sizes do not depend on how many
// tensors there are where their ids follow one another, and log2(hosts) links in a row.
//
// The first time, a name is spelled: its key, requests and rows. The root gives it a wire id, and
// from then on the id alone travels. A table that has forgotten an id asks for it to be spelled.
// When a name waits for long, its leader asks up the tree which ranks lack it.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/negotiation_table.h"
#include "control/tree_messages.h"
#include "transport/message_link.h"

namespace hvd {

class Relay {
 public:
  struct Child {
    MessageLink link;
    std::vector<int> ranks;  // set ranks of its host and the hosts below it
  };

  Relay(NegotiationTable& negotiation, std::optional<MessageLink> parent,
        std::vector<Child> children);

  // Reads, merges, forwards and announces messages. True when anything moved. Throws LinkLost where
  // a record was altered on its way; other losses matter once the link is needed. Throws
  // BadMessage, with the set rank that sent it, where a message is not what it must be: the world
  // is over then.
  bool pump();
  // Tells the tables below of buckets that were cut here, before this rank runs them.
  void announce();
  // Whether this host has something to pass on.
  bool has_work() const;
  // Any thread: whether there are messages that a link has not taken yet.
  bool has_unsent() const { return has_unsent_.load(); }
  // A broken link: the set rank at its other end, and why. It matters once the link is needed.
  std::optional<std::pair<int, std::string>> loss() const;
  void add_polls(std::vector<pollfd>& polls) const;
  // Ends all links, for good.
  void close();
  void close_copies();  // in a forked child

  // A slot waits for long: tells the table above which ranks have arrived, and asks which have not.
  // The answer is in `lacking`, some time later.
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
  void append_bucket(std::span<const BucketEntry> entries);
  void append_run(const IdRun& run);
  void append_decision(const Decision& decision);
  void keep_answer(Lacking lacking);
  void pass_down(std::span<const std::byte> message);
  TreeScope scope(std::span<const int> speakers = {}) const {
    return {.size = negotiation_.size(), .members = negotiation_.members(), .speakers = speakers};
  }
  void forward();
  void refuse_altered() const;
  void note_unsent();
  std::optional<std::uint32_t> slot_of(std::uint32_t id) const;
  void name_slot(std::uint32_t id, std::uint32_t slot);

  struct Inquiry {
    bool is_answered = false;
    std::int64_t asked_ns = 0;
    std::vector<int> ranks;
  };
  struct KeyHash {
    std::size_t operator()(const NameKey& key) const { return key.low; }
  };

  NegotiationTable& negotiation_;
  std::optional<MessageLink> parent_;
  std::vector<Child> children_;
  std::unordered_map<std::uint32_t, std::uint32_t> slots_;  // by wire id
  std::uint32_t last_id_ = 0;                               // of the root's table
  std::size_t prune_at_ = 4096;
  std::unordered_map<NameKey, Inquiry, KeyHash> inquiries_;
  std::atomic<bool> has_unsent_{false};
  BucketTuning tuning_;  // of the last bucket that was told
  std::vector<BucketItem> items_;
  std::vector<BucketEntry> entries_;
};

}  // namespace hvd
