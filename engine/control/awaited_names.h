// Which names the table above has that this host has not submitted. So a rank can receive a message
// from the rank that sends first.
//
// A program's threads ask. Only the holder of the progress role uses links: it passes their
// questions up and keeps the answers. It hears other hosts while a thread of the program asks again
// and again, and for a moment afterwards.
//
// The lock is taken last: nothing else is locked under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "control/slots.h"

namespace hvd {

class AwaitedNames {
 public:
  // Any thread: whether the table above has said that it has the name. If not, it will be asked.
  bool ask(const NameKey& key);
  // Any thread: the holder of the role must hear other hosts from now on. True when it does not
  // know that yet, or has a question to pass on.
  bool listen();
  bool is_listening() const;
  bool has_questions() const { return has_questions_.load(); }

  // The holder of the role: names that the table above has not been asked for.
  std::vector<NameKey> take_questions();
  void keep_answer(const NameKey& key);
  // All questions and answers.
  void forget();

 private:
  enum class State { kNew, kAsked, kAwaited };

  std::mutex mutex_;
  std::unordered_map<NameKey, State, NameKeyHash> names_;
  std::atomic<bool> has_questions_{false};
  std::atomic<std::int64_t> listens_until_ns_{0};
};

}  // namespace hvd
