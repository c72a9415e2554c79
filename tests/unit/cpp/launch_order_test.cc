// The order in which buckets of GPU tensors are launched where sets span hosts: the numbers that
// hosts agree on. No GPU is needed.
#include "control/launch_order.h"

#include <doctest/doctest.h>

#include <random>

#include "contains.h"
#include "linked_boards.h"
#include "targets.h"

namespace hvd::test {
namespace {

Request on_gpu() {
  Request request = float_request(Kind::kAllreduce, {4});
  request.memory = Memory::kCuda;
  return request;
}

// "" for none.
template <typename Use>
std::string field_of(Use&& use) {
  try {
    use();
  } catch (const BadMessage& bad) {
    return bad.fault().message + "." + bad.fault().field;
  }
  return "";
}

TEST_CASE("launch order: the highest proposal of all children wins, in the order of buckets") {
  LaunchOrder order(2);
  order.begin({.bucket = 3, .number = 10});
  order.begin({.bucket = 5, .number = 11});
  CHECK(order.awaits(0));
  order.answer(0, {.bucket = 3, .number = 40});
  order.answer(0, {.bucket = 5, .number = 41});
  CHECK(!order.awaits(0));
  CHECK(order.awaits(1));
  CHECK(!order.next_agreed());
  order.answer(1, {.bucket = 3, .number = 7});
  CHECK(order.next_agreed() == LaunchNumber{.bucket = 3, .number = 40});
  CHECK(!order.next_agreed());
  order.answer(1, {.bucket = 5, .number = 50});
  CHECK(order.next_agreed() == LaunchNumber{.bucket = 5, .number = 50});
  order.end({.bucket = 3, .number = 40});
  CHECK(order.is_open());
  order.end({.bucket = 5, .number = 60});
  CHECK(!order.is_open());
}

TEST_CASE("launch order: a number for a bucket that awaits none is refused") {
  LaunchOrder order(1);
  CHECK(field_of([&] { order.answer(0, {.bucket = 0, .number = 1}); }) == "proposed launch.bucket");
  CHECK(field_of([&] { order.end({.bucket = 0, .number = 1}); }) == "launch.bucket");
  order.begin({.bucket = 1, .number = 10});
  CHECK(field_of([&] { order.answer(0, {.bucket = 2, .number = 1}); }) == "proposed launch.bucket");
  CHECK(field_of([&] { order.end({.bucket = 1, .number = 10}); }) == "launch.bucket");
  order.answer(0, {.bucket = 1, .number = 20});
  CHECK(field_of([&] { order.answer(0, {.bucket = 1, .number = 1}); }) == "proposed launch.bucket");
  REQUIRE(order.next_agreed());
  CHECK(field_of([&] { order.end({.bucket = 2, .number = 20}); }) == "launch.bucket");
  CHECK(field_of([&] { order.end({.bucket = 1, .number = 19}); }) == "launch.number");
  order.end({.bucket = 1, .number = 20});
  CHECK(field_of([&] { order.end({.bucket = 1, .number = 20}); }) == "launch.bucket");
}

TEST_CASE("launch order: messages have their ranges") {
  for (const MessageKind kind : {MessageKind::kProposed, MessageKind::kLaunch}) {
    const std::string name = name_of(kind);
    const LaunchNumber highest{.bucket = ~0U, .number = kMostLaunch};
    Message message = write_launch(kind, highest);
    CHECK(read_launch(message) == highest);
    message.push_back({});
    CHECK(field_of([&] { read_launch(message); }) == name + ".length");
    message.resize(3);
    CHECK(field_of([&] { read_launch(message); }) == name + ".bucket");
    const auto field_with = [&](std::uint64_t number) {
      return field_of([&] { read_launch(write_launch(kind, {.bucket = 1, .number = number})); });
    };
    CHECK(field_with(0) == name + ".number");
    CHECK(field_with(kMostLaunch + 1) == name + ".number");
    CHECK(field_with(~std::uint64_t{0}) == name + ".number");
    CHECK(field_with(1) == "");
  }
  Message ordered = write_ordered();
  read_ordered(ordered);
  ordered.push_back({});
  CHECK(field_of([&] { read_ordered(ordered); }) == "order of launches.length");
}

// What `message` from a neighbour does to a host; see tree_script.h.
std::string heard_by(int host, std::size_t neighbour, const Message& message) {
  fuzz::Bytes script{static_cast<std::byte>(neighbour), static_cast<std::byte>(message.size()),
                     std::byte{0}};
  script.insert(script.end(), message.begin(), message.end());
  return fuzz::play(host, script);
}

TEST_CASE("launch order: messages in the wrong direction are refused, with their sender") {
  const Message proposed = write_launch(MessageKind::kProposed, {.bucket = 0, .number = 1});
  const Message launch = write_launch(MessageKind::kLaunch, {.bucket = 0, .number = 1});
  for (const Message& message : {proposed, write_ordered()}) {
    CHECK(contains(heard_by(3, 0, message), "from rank 3 has"));
    CHECK(contains(heard_by(3, 0, message), "in field kind"));
  }
  CHECK(contains(heard_by(0, 0, launch), "a message 'launch' from rank 2 has"));
  CHECK(contains(heard_by(0, 0, launch), "in field kind"));
  CHECK(contains(heard_by(0, 1, proposed),
                 "a message 'proposed launch' from rank 3 has 0 in field"
                 " bucket; expected no bucket, since none waits for it"));
  CHECK(contains(heard_by(3, 0, launch), "a message 'launch' from rank 3 has 0 in field bucket"));
}

TEST_CASE("launch order: only operations on GPUs are numbered") {
  fuzz::Bytes script = fuzz::record(3)[0];
  for (const auto& [begin, size] : fuzz::messages_in(script)) {
    if (script[begin] == static_cast<std::byte>(MessageKind::kBucket)) {
      script[begin] = static_cast<std::byte>(MessageKind::kNumbered);
    }
  }
  CHECK(contains(fuzz::play(3, script), "has operations in host memory in field items"));
}

const Hosts kEight{{0, 1}, {2}, {3, 4}, {5}, {6}, {7}, {8}, {9}};

TEST_CASE("launch order: a set that is not ordered sends no numbers") {
  Tree tree(kEight);
  std::uint64_t messages = 0;
  for (int round = 0; round < 4; ++round) {
    messages = tree.messages_sent();
    tree.all_arrive("t", on_gpu());
    tree.settle();
    messages = tree.messages_sent() - messages;
    tree.run_bucket([&](int, NegotiationTable& negotiation, const auto&) {
      CHECK(negotiation.launch_of(tree.next()).number == 0);
      CHECK(negotiation.launch_of(tree.next()).is_final);
    });
  }
  CHECK(messages == 14);
}

TEST_CASE("launch order: what a rank submits after it has asked is numbered, alike on all hosts") {
  Tree tree(kEight);
  for (int host = 0; host < tree.count(); ++host) {
    tree.clock(host) = static_cast<std::uint64_t>(100 * (host % 5));
  }
  tree.negotiation(9).order_launches();
  std::uint64_t messages = 0;
  std::uint64_t last = 400;
  for (int round = 0; round < 4; ++round) {
    messages = tree.messages_sent();
    tree.all_arrive("t", on_gpu());
    tree.all_arrive("in host memory", float_request(Kind::kAllreduce, {4}));
    tree.settle();
    messages = tree.messages_sent() - messages;
    const std::uint64_t number = tree.negotiation(0).launch_of(tree.next()).number;
    CHECK(number > last);
    last = number;
    for (int host = 0; host < tree.count(); ++host) CHECK(tree.clock(host).load() >= number);
    tree.run_bucket([&](int, NegotiationTable& negotiation, const auto&) {
      CHECK(negotiation.launch_of(tree.next()).number == number);
      CHECK(negotiation.launch_of(tree.next()).is_final);
    });
    tree.run_bucket([&](int, NegotiationTable& negotiation, const auto&) {
      CHECK(negotiation.launch_of(tree.next()).number == 0);
    });
  }
  CHECK(messages == 7 * 5);  // arrivals, two buckets, proposal, number
}

TEST_CASE("launch order: a number is provisional until all hosts have answered") {
  Tree tree(Hosts{{0, 1}, {2}, {3}, {4}});  // host 3 is below host 2
  tree.negotiation(1).order_launches();
  tree.clock(0) = 9;
  tree.all_arrive("t", on_gpu());
  CHECK(tree.relay(0).late_leaf() == -1);
  for (int round = 0; !tree.negotiation(0).has_bucket(0); ++round) {
    tree.step();
    REQUIRE(round < 10);
  }
  const NegotiationTable& root = tree.negotiation(1);
  CHECK(root.launch_of(0).number == 10);
  CHECK(!root.launch_of(0).is_final);
  CHECK(root.has_earlier_launch(0, 11));
  CHECK(!root.has_earlier_launch(0, 10));
  tree.relay(0).pump();
  CHECK(tree.relay(0).late_leaf() == 2);
  CHECK(tree.relay(0).is_busy());
  tree.relay(1).pump();
  CHECK(!tree.negotiation(2).launch_of(0).is_final);
  tree.relay(0).pump();
  CHECK(tree.relay(0).late_leaf() == -1);  // host 2 knows better
  tree.relay(2).pump();
  CHECK(tree.relay(2).late_leaf() == 4);
  CHECK(!root.launch_of(0).is_final);
  tree.settle();
  for (int rank = 0; rank < tree.size(); ++rank) {
    CHECK(tree.negotiation(rank).launch_of(0).is_final);
    CHECK(tree.negotiation(rank).launch_of(0).number == 10);
  }
  for (int host = 0; host < tree.count(); ++host) CHECK(!tree.relay(host).is_busy());
}

// Sets over the same hosts, each with another root, and one rank on each host. Everything happens
// in random order.
class Crowd {
 public:
  static constexpr int kHosts = 5, kSets = 4, kNames = 12;

  explicit Crowd(unsigned seed) : random_(seed) {
    Hosts hosts;
    Tree::Clocks clocks;
    for (int host = 0; host < kHosts; ++host) {
      hosts.push_back({host});
      clocks.push_back(std::make_shared<std::atomic<std::uint64_t>>(below(20)));
    }
    for (int set = 0; set < kSets; ++set) {
      sets_.push_back(std::make_unique<Tree>(hosts, 1024, clocks));
      sets_.back()->negotiation(below(kHosts)).order_launches();
      std::ranges::rotate(clocks, clocks.begin() + 1);
    }
  }

  // Of each host: the buckets that it has launched, by set and index.
  using Launches = std::vector<std::pair<int, std::uint32_t>>;
  std::vector<Launches> run() {
    for (int step = 0; left_ != 0; ++step) {
      REQUIRE(step < 1'000'000);
      const int set = below(kSets);
      Tree& tree = *sets_[static_cast<std::size_t>(set)];
      const int host = below(kHosts);
      switch (below(4)) {
        case 0:
          arrive(tree, set, place_in(set, host));
          break;
        case 1:
          tree.relay(place_in(set, host)).pump();
          break;
        case 2: {
          const SharedLock lock = tree.negotiation(0).lock();
          tree.negotiation(0).form_bucket();
          break;
        }
        default:
          launch(set, host);
      }
    }
    return launches_;
  }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  // Sets begin at another host each.
  static int place_in(int set, int host) { return (host + kHosts - set) % kHosts; }
  NegotiationTable& table(int set, int host) {
    return sets_[static_cast<std::size_t>(set)]->negotiation(place_in(set, host));
  }

  void arrive(Tree& tree, int set, int rank) {
    int& next = arrived_[set][rank];
    if (next < kNames) tree.arrive(rank, std::to_string(next++), {on_gpu()});
  }

  // As ProcessSets::may_launch does it.
  bool may_launch(int set, int host) {
    const Launch launch = table(set, host).launch_of(cursors_[set][host]);
    if (!launch.is_final) return false;
    REQUIRE(launch.number != 0);
    for (int other = 0; other < kSets; ++other) {
      const std::uint64_t limit = launch.number + (other < set ? 1 : 0);
      if (other != set && table(other, host).has_earlier_launch(cursors_[other][host], limit))
        return false;
    }
    return true;
  }

  void launch(int set, int host) {
    std::uint32_t& cursor = cursors_[set][host];
    NegotiationTable& table = this->table(set, host);
    if (!table.has_bucket(cursor) || !may_launch(set, host)) return;
    launches_[static_cast<std::size_t>(host)].emplace_back(set, cursor);
    std::vector<BucketItem> items;
    table.bucket_items(cursor, items);
    left_ -= static_cast<int>(items.size());
    const SharedLock lock = table.lock();
    table.finish_bucket(cursor++);
  }

  std::mt19937 random_;
  std::vector<std::unique_ptr<Tree>> sets_;
  int arrived_[kSets][kHosts] = {};            // by place: how many names
  std::uint32_t cursors_[kSets][kHosts] = {};  // by host
  std::vector<Launches> launches_{kHosts};
  int left_ = kSets * kHosts * kNames;
};

TEST_CASE("launch order: all hosts launch the buckets of all sets in one order") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto launches = Crowd(seed).run();
    for (const auto& each : launches) CHECK(each == launches.front());
  }
}

}  // namespace
}  // namespace hvd::test
