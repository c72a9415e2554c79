// A leader of another host, or an attacker on the way, sends what cannot be: each value is
// checked before it is used, and the error names peer, message and field.
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "contains.h"
#include "control/tree_messages.h"
#include "core/error.h"
#include "core/text.h"
#include "targets.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

constexpr int kHosts[] = {0, 2, 3};  // the root, one in the middle, a leaf; see tree_host.cc
constexpr std::int32_t kBadNumbers[] = {1 << 30, -(1 << 30), 2'000'000'000, 100'000, -1};

TEST_CASE("hostile: a neighbour's messages as they are bring no error") {
  for (const int host : kHosts) {
    for (const fuzz::Bytes& script : fuzz::record(host)) {
      CHECK(fuzz::messages_in(script).size() > 2);
      CHECK(fuzz::play(host, script) == "");
    }
  }
}

// Places are a prime number of bytes apart, so that over all scripts every field has its turn,
// whatever its width.
constexpr std::size_t kStep = 7;

TEST_CASE("hostile: numbers out of their range in any place are an error or harmless") {
  int errors = 0;
  for (const int host : kHosts) {
    for (const fuzz::Bytes& script : fuzz::record(host)) {
      for (const auto& [begin, size] : fuzz::messages_in(script)) {
        for (std::size_t at = begin % kStep; at + 4 <= size; at += kStep) {
          const std::int32_t number = kBadNumbers[(begin + at) % std::size(kBadNumbers)];
          fuzz::Bytes patched = script;
          std::memcpy(patched.data() + begin + at, &number, sizeof number);
          if (!fuzz::play(host, patched).empty()) ++errors;
        }
      }
    }
  }
  CHECK(errors > 1000);
}

TEST_CASE("hostile: any message cut anywhere is an error or harmless") {
  for (const int host : kHosts) {
    for (const fuzz::Bytes& script : fuzz::record(host)) {
      for (const auto& [begin, size] : fuzz::messages_in(script)) {
        for (std::size_t length = begin % kStep; length < size; length += kStep) {
          fuzz::Bytes cut = script;
          cut[begin - 2] = static_cast<std::byte>(length & 0xffU);
          cut[begin - 1] = static_cast<std::byte>(length >> 8U);
          const auto from = cut.begin() + static_cast<std::ptrdiff_t>(begin + length);
          cut.erase(from, from + static_cast<std::ptrdiff_t>(size - length));
          fuzz::play(host, cut);
        }
      }
    }
  }
}

TEST_CASE("hostile: 1,000 single bits, each an error or harmless") {
  std::mt19937 random(20);
  const auto below = [&](std::size_t end) { return random() % end; };
  int errors = 0;
  for (const int host : kHosts) {
    const std::vector<fuzz::Bytes> scripts = fuzz::record(host);
    for (int seed = 0; seed < 334; ++seed) {
      fuzz::Bytes script = scripts[below(scripts.size())];
      const auto messages = fuzz::messages_in(script);
      const auto [begin, size] = messages[below(messages.size())];
      script[begin + below(size)] ^= static_cast<std::byte>(1U << below(8));
      const std::string text = fuzz::play(host, script);
      if (text.empty()) continue;
      ++errors;
      CHECK_MESSAGE(contains(text, "a message '"), text);
      CHECK_MESSAGE(contains(text, "from rank "), text);
    }
  }
  CHECK(errors > 300);
}

Arrivals arrival_of(std::vector<int> ranks) {
  Arrivals arrival;
  arrival.key = key_of("t");
  arrival.requests = {float_request(Kind::kAllreduce, {4})};
  arrival.requests.front().rank = 4;
  arrival.signature = signature_of(arrival.requests);
  arrival.ranks = std::move(ranks);
  return arrival;
}

Fault fault_of(const Arrivals& arrival) {
  const std::vector<int> speakers{4, 5};
  try {
    read_arrival(write_arrival(arrival), {.size = 8, .members = {}, .speakers = speakers});
  } catch (const BadMessage& bad) {
    return bad.fault();
  }
  return {};
}

TEST_CASE("hostile: the error of an arrival names the field, what it had and what it may have") {
  CHECK(fault_of(arrival_of({4, 5})).field == "");
  const Fault fault = fault_of(arrival_of({1 << 30}));
  CHECK(fault.message == "arrival");
  CHECK(fault.field == "ranks");
  CHECK(fault.found == "rank 1073741824");
  CHECK(fault.expected == "ranks that it speaks for: 4, 5");
  CHECK(fault_of(arrival_of({3})).field == "ranks");  // another child's
  CHECK(fault_of(arrival_of({4, 4})).field == "ranks");
  CHECK(fault_of(arrival_of({})).field == "ranks");
  const auto field_after = [](const auto& change) {
    Arrivals arrival = arrival_of({4});
    change(arrival);
    if (arrival.signature == arrival_of({4}).signature) {
      arrival.signature = signature_of(arrival.requests);
    }
    return fault_of(arrival).field;
  };
  const auto first = [](Arrivals& arrival) -> Request& { return arrival.requests.front(); };
  CHECK(field_after([&](auto& a) { first(a).rank = 8; }) == "rank");
  CHECK(field_after([&](auto& a) { first(a).kind = Kind{7}; }) == "kind");
  CHECK(field_after([&](auto& a) { first(a).dtype = Dtype{11}; }) == "dtype");
  CHECK(field_after([&](auto& a) { first(a).op = ReduceOp{6}; }) == "op");
  CHECK(field_after([&](auto& a) { first(a).memory = Memory{2}; }) == "memory");
  CHECK(field_after([&](auto& a) { first(a).dims[0] = -1; }) == "dims");
  CHECK(field_after([&](auto& a) { first(a).dims[0] = INT64_MAX; }) == "dims");
  CHECK(field_after([&](auto& a) { a.signature = 1; }) == "signature");
  CHECK(field_after([&](auto& a) { a.rows = {1}; }) == "rows");
  CHECK(field_after([&](auto& a) { a.error = std::string(1000, 'x'); }) == "error");
  CHECK(field_after([&](auto& a) {
          first(a).kind = Kind::kBroadcast;
          first(a).root = 8;
        }) == "root");
  CHECK(field_after([&](auto& a) {
          first(a).kind = Kind::kAllgather;
          a.rows = {-1};
        }) == "rows");
  CHECK(field_after([&](auto& a) { a.requests.push_back(float_request(Kind::kAllgather, {4})); }) ==
        "requests");
}

TEST_CASE("hostile: ids and tuning have their ranges") {
  const auto field_of = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const BadMessage& bad) {
      return bad.fault().field;
    }
    return "";
  };
  const std::vector<std::uint32_t> ids{3, 4, 9};
  CHECK(read_ids(write_ids(MessageKind::kArrived, ids)) == ids);
  const Message zero = write_ids(MessageKind::kArrived, std::vector<std::uint32_t>{0});
  CHECK(field_of([&] { read_ids(zero); }) == "ids");
  const Message twice = write_ids(MessageKind::kArrived, std::vector<std::uint32_t>{9, 3});
  CHECK(field_of([&] { read_ids(twice); }) == "ids");
  std::vector<BucketEntry> many(2, IdRun{.first = 1, .count = kMaxSlots + 1});
  CHECK(field_of([&] {
          read_bucket(write_bucket(MessageKind::kBucket, many),
                      {.size = 2, .members = {}, .speakers = {}});
        }) == "number of ids");
  BucketTuning tuning;
  CHECK(read_tuning(write_tuning(tuning)) == tuning);
  tuning.cut.block_kib = 0;
  CHECK(field_of([&] { read_tuning(write_tuning(tuning)); }) == "block_kib");
  for (int format = 0; format <= kLinkFormatCount; ++format) {
    BucketTuning formatted;
    formatted.link_format = static_cast<LinkFormat>(format);
    if (is_decided(formatted.link_format)) {
      CHECK(read_tuning(write_tuning(formatted)) == formatted);
    } else {
      CHECK(field_of([&] { read_tuning(write_tuning(formatted)); }) == "link_format");
    }
  }
}

TEST_CASE("hostile: text of others is fit for a terminal") {
  CHECK(printable("a\nb \xc3\xa4 \xe2\x82\xac") == "a\nb \xc3\xa4 \xe2\x82\xac");
  CHECK(printable("\x1b[2J\x7f") == "\\x1b[2J\\x7f");
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable("\xc0\xaf\xed\xa0\x80") == "\\xc0\\xaf\\xed\\xa0\\x80");
}

// Three hosts of one rank each; what rank 1 tells the root comes from the test.
class PlayedChild {
 public:
  PlayedChild()
      : pair_(connected_pair()),
        seals_(seals_pair()),
        link_(pair_.second, 0, seals_.second, "control link"),
        world_(
            3, [](EngineConfig&) {}, [](int) { return std::vector<WatchedProcess>{}; },
            Hosts{{0}, {1}, {2}},
            [this](int rank, Connections& own) {
              if (rank != 0) return;
              for (LeaderLink& link : own.world.control) {
                if (link.host != 1) continue;
                close(std::exchange(link.fd, pair_.first));
                link.seals = seals_.first;
              }
            }) {}

  MessageLink& link() { return link_; }
  WorldOfThreads& world() { return world_; }

 private:
  const Pair pair_;
  const SealsPair seals_;
  MessageLink link_;
  WorldOfThreads world_;
};

TEST_CASE("hostile: what a leader must not have said ends the world on every rank, with its name") {
  PlayedChild played;
  Arrivals arrival = arrival_of({1 << 30});
  arrival.requests.front().rank = 1;
  played.link().post(write_arrival(arrival));
  played.world().run([&](int /*rank*/, Engine& engine) {
    std::vector<float> values(4, 1.0F);
    const std::string text =
        error_of([&] { finish(engine, submit(engine, in_place("t", values))); });
    CHECK_MESSAGE(contains(text,
                           "a message 'arrival' from rank 1 has rank 1073741824 in field "
                           "ranks; expected ranks that it speaks for: 1"),
                  text);
  });
}

// Ranks that have joined run what others have checked, each tensor of a group.
TEST_CASE("hostile: what the kernels cannot do ends the world on ranks that have joined") {
  for (const bool is_coded : {false, true}) {
    PlayedChild played;
    Arrivals arrival = arrival_of({1});
    Request request = arrival.requests.front();
    request.rank = 1;
    request.is_grouped = true;
    arrival.requests = {request, request};
    arrival.requests.back().dtype = is_coded ? Dtype::kInt32 : Dtype::kBool;
    arrival.requests.back().op = is_coded ? ReduceOp::kSum : ReduceOp::kAverage;
    if (is_coded) arrival.requests.back().format = LinkFormat::kInt8;
    arrival.signature = signature_of(arrival.requests);
    played.link().post(write_arrival(arrival));
    played.world().run([&](int rank, Engine& engine) {
      if (rank == 1) return;
      const std::string text = error_of([&] { join(engine); });
      CHECK_MESSAGE(contains(text, is_coded ? "compression=int8 needs float32, float16 or bfloat16"
                                            : "bool has no average"),
                    text);
    });
  }
}

// Two hosts; what rank 0 tells rank 1 about the world comes from the test.
TEST_CASE("hostile: news that cannot be ends the world with its sender's name") {
  const Pair pair = connected_pair();
  const SealsPair seals = seals_pair();
  MessageLink news(pair.second, 0, seals.second, "news link");
  WorldOfThreads world(
      2, [](EngineConfig&) {}, [](int) { return std::vector<WatchedProcess>{}; }, Hosts{{0}, {1}},
      [&](int rank, Connections& own) {
        if (rank != 1) return;
        for (LeaderLink& link : own.news) {
          close(std::exchange(link.fd, pair.first));
          link.seals = seals.first;
        }
      });
  news.post(write_news({.liveness = Liveness::kDead, .alarm = {.rank = 1 << 30, .text = {}}}));
  std::vector<float> values(4, 1.0F);
  const std::string text =
      error_of([&] { finish(world.engine(1), submit(world.engine(1), in_place("t", values))); });
  CHECK_MESSAGE(contains(text,
                         "a message 'news' from rank 0 has rank 1073741824 in field rank; "
                         "expected a rank of its own host"),
                text);
}

TEST_CASE("hostile: numbers out of their range in news are refused") {
  const NewsScope scope{.size = 6, .sender = {2, 3}, .own = {4, 5}};
  const auto field_of = [&](const NewsItem& item) -> std::string {
    try {
      read_news(write_news(item), scope);
    } catch (const BadMessage& bad) {
      return bad.fault().field;
    }
    return "";
  };
  for (const std::int32_t number : kBadNumbers) {
    CHECK(field_of({.alarm = {.rank = number, .text = {}}}) == "rank");
    CHECK(field_of({.liveness = Liveness::kLeft, .alarm = {.rank = number, .text = {}}}) == "rank");
    CHECK(field_of({.alarm = {.code = static_cast<ErrorCode>(number), .text = {}}}) == "code");
    CHECK(field_of({.liveness = static_cast<Liveness>(number), .alarm = {}}) == "liveness");
    CHECK(field_of({.alarm = {}, .note = static_cast<NoteKind>(number)}) == "note");
  }
  CHECK(field_of({.alarm = {.rank = 5, .text = "died"}}) == "");
  CHECK(field_of({.liveness = Liveness::kDead, .alarm = {.rank = 5, .text = {}}}) == "rank");
  CHECK(field_of({.liveness = Liveness::kDead, .alarm = {.rank = 3, .text = {}}}) == "");
  CHECK(field_of({.alarm = {.rank = 3, .text = {}}, .note = NoteKind::kQuestion}) == "rank");
  CHECK(field_of({.alarm = {.rank = 4, .text = {}}, .note = NoteKind::kQuestion}) == "");
  CHECK(field_of({.alarm = {.rank = 0, .text = {}}, .note = NoteKind::kBeginTrace}) == "note");
  CHECK(field_of({.alarm = {.rank = 5, .text = std::string(2000, 'x')}}) == "text");
  const auto field_with = [&](std::vector<int> ranks, std::string operation = {}) {
    return field_of(
        {.alarm = {
             .rank = 5, .text = "", .ranks = std::move(ranks), .operation = std::move(operation)}});
  };
  CHECK(field_with({0, 2, 5}, "allreduce 'x'") == "");
  CHECK(field_with({0}, std::string(256, 'x')) == "operation");
  CHECK(field_with({2, 1}) == "ranks");
  CHECK(field_with({2, 2}) == "ranks");
  CHECK(field_with({6}) == "ranks");
  CHECK(field_with({-1}) == "ranks");
  CHECK(field_with({0, 1, 2, 3, 4, 5, 6}) == "ranks");
}

TEST_CASE("news of an alarm bring all its ranks and its operation") {
  Alarm alarm{.code = ErrorCode::kTimeout, .rank = 4, .text = "allreduce 'x' waits"};
  for (int rank = 4; rank < 44; ++rank) alarm.ranks.push_back(rank);
  alarm.operation = "allreduce 'x'";
  const NewsScope scope{.size = 44, .sender = {0, 1}, .own = {2, 3}};
  const NewsItem item = read_news(write_news({.alarm = alarm}), scope);
  CHECK(item.alarm.ranks == alarm.ranks);
  CHECK(item.alarm.operation == alarm.operation);
  CHECK(item.alarm.text == alarm.text);
}

}  // namespace
}  // namespace hvd::test
