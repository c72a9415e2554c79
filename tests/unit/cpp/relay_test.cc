// Boards of several hosts, linked by socket pairs, used from one thread.
#include "control/relay.h"

#include <doctest/doctest.h>

#include "boards.h"
#include "control/tree.h"
#include "linked_boards.h"

namespace hvd {
namespace {

using test::float_request;
using test::Hosts;
using test::Tree;

const std::vector<Hosts> kShapes = {{{0}, {1}},
                                    {{0, 1}, {2, 3}},
                                    {{0, 2}, {1}},
                                    {{0}, {1, 2, 3}, {4, 5}},
                                    {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}};

TEST_CASE("relay: all hosts run the same items in the same order") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts);
    for (int round = 0; round < 4; ++round) {
      for (int rank = 0; rank < tree.size(); ++rank) {
        for (int i = 0; i < 5; ++i) {
          const int tensor = (i + rank) % 5;  // in an order of its own
          tree.arrive(rank, "t" + std::to_string(tensor),
                      {float_request(Kind::kAllreduce, {tensor + 1})});
        }
      }
      CHECK(!tree.has_bucket());
      tree.settle();
      std::size_t items_seen = 0;
      while (items_seen < 5) {
        std::vector<std::int64_t> shapes;
        tree.run_bucket(
            [&](int rank, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
              std::vector<std::int64_t> own;
              for (const BucketItem& item : items)
                own.push_back(negotiation.request_of(item).dims[0]);
              if (rank == 0) shapes = own;
              CHECK(own == shapes);
            });
        items_seen += shapes.size();
      }
      CHECK(!tree.has_bucket());
    }
  }
}

TEST_CASE("relay: the steady state needs few bytes, whatever the number of tensors") {
  Tree tree(Hosts{{0}, {1}});
  std::uint64_t bytes = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 1000; ++i) {
      tree.all_arrive("gradient/" + std::to_string(i), float_request(Kind::kAllreduce, {16}));
    }
    bytes = tree.relay(0).bytes_sent() + tree.relay(1).bytes_sent();
    tree.settle();
    bytes = tree.relay(0).bytes_sent() + tree.relay(1).bytes_sent() - bytes;
    while (tree.has_bucket()) tree.run_bucket([](int, NegotiationTable&, const auto&) {});
  }
  CHECK(bytes < 100);
}

// Messages of all links in one step of `tensors` tensors, once their names are known.
struct Step {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  int rounds = 0;  // of every leader looking at its links once, until the last host knows
};

Step steady_step(int hosts, int tensors) {
  Hosts each;
  for (int host = 0; host < hosts; ++host) each.push_back({host});
  Tree tree(each);
  Step step;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < tensors; ++i) {
      tree.all_arrive("gradient/" + std::to_string(i), float_request(Kind::kAllreduce, {16}));
    }
    const auto sum = [&](auto count) {
      std::uint64_t total = 0;
      for (int host = 0; host < hosts; ++host) total += count(tree.relay(host));
      return total;
    };
    const auto messages = [&] { return sum([](Relay& r) { return r.messages_sent(); }); };
    const auto bytes = [&] { return sum([](Relay& r) { return r.bytes_sent(); }); };
    step = {.messages = messages(), .bytes = bytes()};
    while (!tree.negotiation(hosts - 1).has_bucket(tree.next())) {
      tree.step();
      ++step.rounds;
    }
    tree.settle();
    step.messages = messages() - step.messages;
    step.bytes = bytes() - step.bytes;
    while (tree.has_bucket()) tree.run_bucket([](int, NegotiationTable&, const auto&) {});
  }
  return step;
}

TEST_CASE("relay: a step costs a message up and one down each link, in log2(hosts) rounds") {
  for (const int hosts : {2, 3, 4, 8, 16, 32, 64}) {
    const Step few = steady_step(hosts, 10);
    const Step many = steady_step(hosts, 1000);
    MESSAGE(hosts << " hosts: " << many.messages << " messages, " << many.bytes << " bytes, "
                  << many.rounds << " rounds for 1000 tensors; " << few.bytes << " bytes for 10");
    CHECK(many.messages == static_cast<std::uint64_t>(2 * (hosts - 1)));
    CHECK(many.bytes <= few.bytes + 4U * few.messages);
    int levels = 0;
    while ((1 << levels) < hosts) ++levels;
    CHECK(many.rounds <= 2 * levels + 1);
  }
}

TEST_CASE("relay: rows and splits of all ranks reach all hosts") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts);
    for (int round = 0; round < 3; ++round) {
      for (int rank = 0; rank < tree.size(); ++rank) {
        tree.arrive(rank, "g", {float_request(Kind::kAllgather, {10 * round + rank, 2})});
      }
      tree.settle();
      tree.run_bucket(
          [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            for (int rank = 0; rank < tree.size(); ++rank) {
              CHECK(negotiation.rows_of(items.at(0), rank) == 10 * round + rank);
            }
          });
      for (int rank = 0; rank < tree.size(); ++rank) {
        std::vector<std::int64_t> splits;
        for (int to = 0; to < tree.size(); ++to) splits.push_back(100 * rank + to + round);
        std::int64_t rows = 0;
        for (const std::int64_t each : splits) rows += each;
        tree.arrive(rank, "a", {float_request(Kind::kAlltoall, {rows})}, splits);
      }
      tree.settle();
      tree.run_bucket(
          [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            std::vector<std::int64_t> splits;
            negotiation.splits_of(items.at(0), splits);
            for (int rank = 0; rank < tree.size(); ++rank) {
              for (int to = 0; to < tree.size(); ++to) {
                CHECK(splits[static_cast<std::size_t>(rank * tree.size() + to)] ==
                      100 * rank + to + round);
              }
            }
          });
    }
  }
}

TEST_CASE("relay: a mismatch is told to every rank, and the name is clean afterwards") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts);
    for (int odd = 0; odd < tree.size(); ++odd) {
      for (int rank = 0; rank < tree.size(); ++rank) {
        tree.arrive(rank, "t", {float_request(Kind::kAllreduce, {rank == odd ? 3 : 4})});
      }
      tree.settle();
      tree.run_bucket(
          [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            const auto text = negotiation.error_of(items.at(0));
            REQUIRE(text);
            CHECK(text->find("rank " + std::to_string(odd)) != std::string::npos);
          });
      tree.all_arrive("t", float_request(Kind::kAllreduce, {4}));
      tree.settle();
      tree.run_bucket(
          [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            CHECK(!negotiation.error_of(items.at(0)));
          });
    }
  }
}

TEST_CASE("relay: ranks join on different hosts") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts);
    const int last = tree.size() - 1;
    for (int rank = 0; rank < last; ++rank) {
      tree.arrive(rank, "join", {float_request(Kind::kJoin, {})});
      tree.settle();
      CHECK(!tree.has_bucket());
    }
    for (int round = 0; round < 3; ++round) {
      tree.arrive(last, "t", {float_request(Kind::kAllgather, {5})});
      tree.settle();
      tree.run_bucket(
          [&](int rank, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            CHECK(negotiation.has_absent(items.at(0)));
            CHECK(negotiation.is_absent(items.at(0)) == (rank != last));
            CHECK(negotiation.rows_of(items.at(0), 0) == 0);
            CHECK(negotiation.rows_of(items.at(0), last) == 5);
          });
    }
    tree.arrive(last, "join", {float_request(Kind::kJoin, {})});
    tree.settle();
    tree.run_bucket([&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
      CHECK(negotiation.last_of(items.at(0)) == last);
    });
    tree.all_arrive("t", float_request(Kind::kAllgather, {2}));
    tree.settle();
    tree.run_bucket([&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
      CHECK(!negotiation.has_absent(items.at(0)));
    });
  }
}

TEST_CASE("relay: names that a board has forgotten are spelled again") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts, 2);
    for (int round = 0; round < 40; ++round) {
      const int tensor = (round * 7) % 5;
      tree.all_arrive("t" + std::to_string(tensor), float_request(Kind::kAllreduce, {tensor + 1}));
      if (round % 3 == 0) tree.all_arrive("u", float_request(Kind::kAllreduce, {9}));
      tree.settle();
      while (tree.has_bucket()) {
        tree.run_bucket(
            [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
              for (const BucketItem& item : items) CHECK(!negotiation.error_of(item));
            });
      }
    }
  }
}

TEST_CASE("relay: groups, and a rank that changes its shape") {
  for (const Hosts& hosts : kShapes) {
    Tree tree(hosts);
    for (int round = 0; round < 6; ++round) {
      std::vector<Request> group;
      for (int i = 0; i <= round % 3; ++i) {
        group.push_back(float_request(Kind::kAllreduce, {i + 1 + round / 3}));
        group.back().is_grouped = true;
      }
      for (int rank = 0; rank < tree.size(); ++rank) tree.arrive(rank, "g", group);
      tree.settle();
      tree.run_bucket(
          [&](int, NegotiationTable& negotiation, const std::vector<BucketItem>& items) {
            std::vector<BucketItem> tensors;
            negotiation.tensors_of(items.at(0), tensors);
            REQUIRE(tensors.size() == group.size());
            for (std::size_t i = 0; i < group.size(); ++i) {
              CHECK(negotiation.request_of(tensors[i]).dims[0] == group[i].dims[0]);
            }
          });
    }
  }
}

TEST_CASE("relay: who lacks a name is known where it waits") {
  Tree tree(Hosts{{0}, {1}, {2, 3}});
  tree.arrive(1, "t", {float_request(Kind::kAllreduce, {1})});
  tree.settle();
  NegotiationTable& negotiation = tree.negotiation(1);
  const auto slot = negotiation.find(key_of("t"));
  REQUIRE(slot);
  tree.relay(1).report_waiting(*slot, key_of("t"));
  tree.settle();
  CHECK(tree.relay(1).lacking(key_of("t")) == std::vector<int>{0, 2, 3});
}

TEST_CASE("tree: every host is below the root, at most log2 links away") {
  for (int hosts = 1; hosts <= 64; ++hosts) {
    CHECK(tree_below(0, hosts).size() == static_cast<std::size_t>(hosts));
    for (int host = 0; host < hosts; ++host) {
      int links = 0;
      for (int at = host; at != 0; at = tree_parent(at)) ++links;
      CHECK((1 << links) <= std::max(hosts, 1));
      for (const int child : tree_children(host, hosts)) CHECK(tree_parent(child) == host);
    }
  }
}

TEST_CASE("relay: every bucket has the tuning of the moment it was cut, on all hosts") {
  Tree tree({{0, 1}, {2}, {3, 4}, {5}, {6}});
  const auto format_of = [](std::uint16_t block_kib) {
    return block_kib < 500 ? LinkFormat::kInt8 : LinkFormat::kExact;
  };
  for (std::uint16_t block_kib : {512, 512, 64, 128, 128, 512}) {
    {
      const SharedLock lock = tree.negotiation(0).lock();
      Tuning tuning;
      tuning.bucket = {.cycle_time_us = block_kib * 2U,
                       .cut = {.block_kib = block_kib},
                       .link_format = format_of(block_kib)};
      tree.negotiation(0).tune(tuning);
    }
    tree.all_arrive("a", float_request(Kind::kAllreduce, {4}));
    tree.settle();
    tree.run_bucket([&](int, NegotiationTable& negotiation, const std::vector<BucketItem>&) {
      const BucketTuning tuning = negotiation.tuning_of(tree.next());
      CHECK(tuning.cut.block_kib == block_kib);
      CHECK(tuning.cycle_time_us == block_kib * 2U);
      CHECK(tuning.link_format == format_of(block_kib));
    });
  }
}

}  // namespace
}  // namespace hvd
