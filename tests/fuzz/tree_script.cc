#include "tree_script.h"

#include <functional>
#include <memory>
#include <utility>

#include "control/tree.h"
#include "core/error.h"
#include "tree_host.h"

namespace hvd::fuzz {

namespace {

constexpr std::size_t kSubmit = 0x40;
constexpr std::size_t kJoin = 0x60;
constexpr std::size_t kAsk = 0x70;
constexpr std::size_t kRun = 0x80;

// The parent first.
std::vector<int> neighbours_of(int host) {
  std::vector<int> neighbours = tree_children(host, static_cast<int>(tree_hosts().size()));
  if (host != 0) neighbours.insert(neighbours.begin(), tree_parent(host));
  return neighbours;
}

std::unique_ptr<TreeHost> open_host(int host, const std::vector<End>& ends) {
  std::vector<End> children = ends;
  std::optional<End> parent;
  if (host != 0) {
    parent = children.front();
    children.erase(children.begin());
  }
  return std::make_unique<TreeHost>(host, parent, children);
}

class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool is_empty() const { return rest_.empty(); }
  std::size_t next() {
    const auto value = std::to_integer<std::size_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  std::span<const std::byte> next_message() {
    if (rest_.size() < 2) return std::exchange(rest_, {});
    const std::size_t size = next() | next() << 8U;
    const auto message = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(message.size());
    return message;
  }
  std::size_t rest_bytes() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

// Hosts that are connected through one that writes down what `host` hears.
class Recording {
 public:
  explicit Recording(int host) : host_(host), neighbours_(neighbours_of(host)) {
    const int count = static_cast<int>(tree_hosts().size());
    std::vector<std::vector<End>> ends(static_cast<std::size_t>(count));
    for (int child = 1; child < count; ++child) connect(tree_parent(child), child, ends);
    for (int each = 0; each < count; ++each) {
      hosts_.push_back(open_host(each, ends[static_cast<std::size_t>(each)]));
    }
  }

  void submit(int name) {
    for (auto& host : hosts_) host->submit(name);
    note(kSubmit + static_cast<std::size_t>(name));
  }
  void join(int host, std::size_t index) {
    hosts_[static_cast<std::size_t>(host)]->join(index);
    if (host == host_) note(kJoin + index);
  }
  void ask(int name) {
    for (auto& host : hosts_) host->ask(name);
    note(kAsk + static_cast<std::size_t>(name));
  }
  void submit_at(int host, int name) {
    hosts_[static_cast<std::size_t>(host)]->submit(name);
    if (host == host_) note(kSubmit + static_cast<std::size_t>(name));
  }
  // Until nothing moves, then all ranks run what is decided.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& host : hosts_) moved |= host->pump();
      for (std::size_t i = 0; i < neighbours_.size(); ++i) moved |= pass(i);
    }
    for (auto& host : hosts_) host->run_buckets();
    note(kRun);
  }
  Bytes take() { return std::move(script_); }

 private:
  void connect(int parent, int child, std::vector<std::vector<End>>& ends) {
    const auto add = [&](int host, const End& end) {
      ends[static_cast<std::size_t>(host)].push_back(end);
    };
    const Pair pair = connected_pair();
    if (parent != host_ && child != host_) {
      add(parent, pair.first);
      add(child, pair.second);
      return;
    }
    const Pair further = connected_pair();
    const int neighbour = parent == host_ ? child : parent;
    add(host_, pair.first);
    add(neighbour, further.first);
    ours_.push_back(link_at(pair.second, 0));
    theirs_.push_back(link_at(further.second, 0));
  }
  void note(std::size_t value) { script_.push_back(static_cast<std::byte>(value)); }
  bool pass(std::size_t i) {
    const bool has_said = ours_[i].receive([&](auto message) { theirs_[i].post(message); });
    return theirs_[i].receive([&](auto message) {
      note(i);
      note(message.size() & 0xffU);
      note(message.size() >> 8U);
      script_.insert(script_.end(), message.begin(), message.end());
      ours_[i].post(message);
    }) || has_said;
  }

  const int host_;
  const std::vector<int> neighbours_;
  std::vector<std::unique_ptr<TreeHost>> hosts_;
  std::vector<MessageLink> ours_, theirs_;  // by neighbour
  Bytes script_;
};

void act(TreeHost& host, std::vector<MessageLink>& neighbours, Script& script) {
  const std::size_t what = script.next();
  if (what < kSubmit) {
    neighbours[what % neighbours.size()].post(script.next_message());
  } else if (what < kJoin) {
    host.submit(static_cast<int>(what - kSubmit) % kNames);
  } else if (what < kAsk) {
    host.join(what - kJoin);
  } else if (what < kRun) {
    host.ask(static_cast<int>(what - kAsk) % kNames);
  } else {
    host.run_buckets();
  }
  host.pump();
  for (MessageLink& neighbour : neighbours) neighbour.receive([](auto) {});
}

}  // namespace

std::string play(int host, std::span<const std::byte> bytes) {
  std::vector<End> ends;
  std::vector<MessageLink> neighbours;
  for (const int neighbour : neighbours_of(host)) {
    const Pair pair = connected_pair();
    ends.push_back(pair.first);
    neighbours.push_back(link_at(pair.second, neighbour));
  }
  const std::unique_ptr<TreeHost> played = open_host(host, ends);
  try {
    for (Script script(bytes); !script.is_empty();) act(*played, neighbours, script);
    played->run_buckets();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::vector<Bytes> record(int host) {
  std::vector<Bytes> scripts;
  const auto run = [&](const std::function<void(Recording&)>& scenario) {
    Recording recording(host);
    scenario(recording);
    scripts.push_back(recording.take());
  };
  for (int name = 0; name < kNames; ++name) {
    run([&](Recording& recording) {
      for (int round = 0; round < 3; ++round) {
        recording.submit(name);
        recording.settle();
      }
    });
  }
  // Several in one bucket; more names than are remembered. None on GPUs: an alone root may cut
  // other buckets than here, and proposals have their indices.
  run([](Recording& recording) {
    for (int round = 0; round < 3; ++round) {
      for (int name = 0; name < kOnGpus; ++name) recording.submit(name);
      recording.settle();
    }
  });
  run([](Recording& recording) {
    for (const auto& [host, index] : {std::pair(3, 0UL), {2, 1UL}, {0, 0UL}}) {
      recording.join(host, index);
      for (const int name : {0, 3, 4, 5}) recording.submit(name);
      recording.settle();
    }
    for (int host = 0; host < 4; ++host) {
      for (std::size_t index = 0; index < 3; ++index) recording.join(host, index);
    }
    recording.settle();
    recording.submit(1);
    recording.settle();
  });
  run([](Recording& recording) {  // one host after the other, and all ask meanwhile
    for (int round = 0; round < 3; ++round) {
      for (int host = 0; host < 4; ++host) {
        recording.submit_at((host + round) % 4, 1);
        for (const int name : {0, 1}) recording.ask(name);
        recording.settle();
      }
    }
  });
  return scripts;
}

std::vector<std::pair<std::size_t, std::size_t>> messages_in(std::span<const std::byte> bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> messages;
  for (Script script(bytes); !script.is_empty();) {
    if (script.next() >= kSubmit) continue;
    const std::size_t size = script.next_message().size();
    messages.emplace_back(bytes.size() - script.rest_bytes() - size, size);
  }
  return messages;
}

}  // namespace hvd::fuzz
