// Which names another host has submitted: what a rank is told, and when.
#include "control/awaited_names.h"

#include <doctest/doctest.h>

#include <array>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "boards.h"
#include "control/tree_messages.h"
#include "core/error.h"
#include "linked_boards.h"

namespace hvd {
namespace {

using test::float_request;
using test::Hosts;
using test::Tree;

void arrive(Tree& tree, int rank, const std::string& name) {
  tree.arrive(rank, name, {float_request(Kind::kAllreduce, {1})});
}

// The answer comes some time after the question.
bool is_awaited(Tree& tree, int host, const std::string& name) {
  tree.relay(host).is_awaited(key_of(name));
  tree.settle();
  return tree.relay(host).is_awaited(key_of(name));
}

TEST_CASE("awaited names: each of two hosts learns what the other one has submitted") {
  Tree tree(Hosts{{0}, {1}});
  for (int round = 0; round < 3; ++round) {
    for (const int own : {0, 1}) {
      CHECK(!is_awaited(tree, own, "t"));
      arrive(tree, 1 - own, "t");
      CHECK(is_awaited(tree, own, "t"));
      CHECK(!is_awaited(tree, 1 - own, "t"));
      CHECK(!is_awaited(tree, own, "u"));
      arrive(tree, own, "t");
      CHECK(!tree.relay(own).is_awaited(key_of("t")));
      tree.settle();
      CHECK(!is_awaited(tree, own, "t"));
      tree.run_bucket([](int, NegotiationTable&, const auto&) {});
    }
  }
}

TEST_CASE("awaited names: a question waits for its answer and is asked once") {
  Tree tree(Hosts{{0}, {1}});
  CHECK(!is_awaited(tree, 1, "t"));
  const std::uint64_t sent = tree.relay(1).messages_sent();
  for (int i = 0; i < 100; ++i) CHECK(!is_awaited(tree, 1, "t"));
  CHECK(tree.relay(1).messages_sent() == sent);
  arrive(tree, 0, "t");
  tree.settle();
  CHECK(tree.relay(1).is_awaited(key_of("t")));
  CHECK(tree.relay(0).messages_sent() == 1);
}

TEST_CASE("awaited names: a host hears of all ranks that the table above knows") {
  Tree tree(Hosts{{0, 1}, {2}, {3}});
  arrive(tree, 3, "t");
  CHECK(is_awaited(tree, 0, "t"));
  CHECK(is_awaited(tree, 1, "t"));
  arrive(tree, 1, "u");
  CHECK(is_awaited(tree, 1, "u"));
  CHECK(is_awaited(tree, 2, "u"));
}

// Two hosts that submit, run, ask and look at their links in any order. Names come again at once,
// so answers of earlier rounds meet later ones.
class AnyOrder {
 public:
  explicit AnyOrder(unsigned seed) : random_(seed) {}

  void act() {
    const std::size_t rank = random_() % 2, name = random_() % kNames.size();
    switch (random_() % 6) {
      case 0:
        return submit(rank, name);
      case 1:
        return run(rank);
      case 2:
        return form_bucket();
      case 3:
        return ask(rank, name);
      default:
        tree_.relay(static_cast<int>(rank)).pump();
    }
  }
  // A message that waits is found, whatever came before.
  void end() {
    tree_.settle();
    for (std::size_t rank : {0, 1}) {
      for (std::size_t name = 0; name < kNames.size(); ++name) {
        const bool is_late = counts_[1 - rank][name] > counts_[rank][name];
        CHECK(is_awaited(tree_, static_cast<int>(rank), kNames[name]) == is_late);
      }
    }
  }
  int found() const { return found_; }

 private:
  static constexpr std::array<const char*, 3> kNames{"a", "b", "c"};
  using Counts = std::array<int, kNames.size()>;  // by name

  void submit(std::size_t rank, std::size_t name) {
    if (counts_[rank][name] != ended_[rank][name]) return;
    ++counts_[rank][name];
    tree_.arrive(static_cast<int>(rank), kNames[name],
                 {float_request(Kind::kAllreduce, {static_cast<std::int64_t>(name) + 1})});
  }
  void run(std::size_t rank) {
    NegotiationTable& negotiation = tree_.negotiation(static_cast<int>(rank));
    if (!negotiation.has_bucket(next_[rank])) return;
    std::vector<BucketItem> items;
    negotiation.bucket_items(next_[rank], items);
    for (const BucketItem& item : items) {
      ++ended_[rank][static_cast<std::size_t>(negotiation.request_of(item).dims[0] - 1)];
    }
    const SharedLock lock = negotiation.lock();
    negotiation.finish_bucket(next_[rank]++);
  }
  void form_bucket() {
    {
      const SharedLock lock = tree_.negotiation(0).lock();
      tree_.negotiation(0).form_bucket();
    }
    tree_.relay(0).announce();  // as before a rank begins a bucket
  }
  void ask(std::size_t rank, std::size_t name) {
    if (!tree_.relay(static_cast<int>(rank)).is_awaited(key_of(kNames[name]))) return;
    ++found_;
    CHECK(counts_[1 - rank][name] > counts_[rank][name]);
  }

  std::mt19937 random_;
  Tree tree_{Hosts{{0}, {1}}};
  std::array<Counts, 2> counts_{};  // rounds that a rank has submitted
  std::array<Counts, 2> ended_{};   // and run
  std::array<std::uint32_t, 2> next_{};
  int found_ = 0;
};

TEST_CASE("awaited names: in any order an answer is about the round to come") {
  int found = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    AnyOrder order(seed);
    for (int i = 0; i < 2000; ++i) order.act();
    order.end();
    found += order.found();
  }
  CHECK(found > 1000);
}

TEST_CASE("awaited names: messages with a name are checked") {
  for (const MessageKind kind : {MessageKind::kMayCome, MessageKind::kAwaited}) {
    Message message = write_name(kind, key_of("t"));
    CHECK(kind_of(message) == kind);
    CHECK(read_name(message) == key_of("t"));
    Message longer = message;
    longer.push_back(std::byte{});
    CHECK_THROWS_AS(read_name(longer), BadMessage);
    message.pop_back();
    CHECK_THROWS_AS(read_name(message), BadMessage);
  }
}

TEST_CASE("awaited names: an answer without a question is not kept") {
  AwaitedNames names;
  names.keep_answer(key_of("t"));
  CHECK(!names.ask(key_of("t")));
  CHECK(names.take_questions() == std::vector{key_of("t")});
  CHECK(names.take_questions().empty());
  names.keep_answer(key_of("t"));
  CHECK(names.ask(key_of("t")));
  names.forget();
  CHECK(!names.ask(key_of("t")));
}

TEST_CASE("awaited names: a thread that listens says so once, and again with each question") {
  AwaitedNames names;
  CHECK(!names.is_listening());
  CHECK(names.listen());
  CHECK(names.is_listening());
  names.ask(key_of("t"));
  CHECK(names.listen());
  names.take_questions();
  while (names.is_listening()) std::this_thread::yield();
  CHECK(names.listen());
}

// Two engines on two hosts, whose background threads alone use the links.
TEST_CASE("awaited names: engines of two hosts find each other's messages") {
  const Hosts hosts{{0}, {1}};
  test::WorldOfThreads world(
      2, [](EngineConfig&) {}, [](int) { return std::vector<WatchedProcess>{}; }, hosts);
  std::vector<SetLinks> links = test::link_set(hosts, {0, 1}, 2);
  for (int rank : {0, 1}) {
    world.engine(rank).add_pair(1 - rank, std::move(links[static_cast<std::size_t>(rank)]));
  }
  const int set = world.engine(0).add_pair(1);
  for (int round = 0; round < 20; ++round) {
    const int receiver = round % 2;
    world.run([&](int rank, Engine& engine) {
      std::vector<float> values(1, static_cast<float>(rank));
      test::Operation message =
          test::in_place("m" + std::to_string(round % 4), values, Kind::kBroadcast);
      message.requests.front().root = 1 - receiver;
      const std::int64_t deadline = now_ns() + Nanoseconds(test::kPatience).count();
      while (rank == receiver && !engine.is_awaited(set, message.name)) {
        REQUIRE(now_ns() < deadline);
        std::this_thread::yield();
      }
      test::finish(engine, test::submit(engine, message, Intent::kWait, set));
      CHECK(values.front() == static_cast<float>(1 - receiver));
      CHECK(!engine.is_awaited(set, message.name));
    });
  }
}

}  // namespace
}  // namespace hvd
