// Which error a lost rank or an alarm stands for, without an engine.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "contains.h"
#include "runtime/failed_start.h"
#include "runtime/failures.h"
#include "world_of_threads.h"

namespace hvd::test {

namespace {

struct Observed {
  explicit Observed(EngineConfig config = {})
      : space(SharedSpace::in_process()),
        world(of_four(std::move(config)), *space),
        failures(world) {}

  static EngineConfig of_four(EngineConfig config) {
    config.size = 4;
    config.peer_hosts = {"alpha", "alpha", "beta", "beta"};
    return config;
  }

  std::shared_ptr<SharedSpace> space;
  World world;
  Failures failures;
};

}  // namespace

TEST_CASE("failures: an alarm comes before a dead rank, and that before a departure") {
  Observed observed;
  CHECK(contains(observed.failures.cause().what(), "another rank has ended"));
  observed.world.presence.set_liveness(3, Liveness::kLeft);
  observed.world.alarms.note_departure(3);
  CHECK(contains(observed.failures.cause().what(), "rank 3 has shut down"));
  observed.world.presence.set_liveness(2, Liveness::kDead);
  CHECK(contains(observed.failures.cause().what(), "rank 2 died"));
  observed.world.alarms.raise({.code = ErrorCode::kInternal, .rank = 1, .text = "out of order"});
  CHECK(std::string(observed.failures.cause().what()) == "out of order");
}

TEST_CASE("failures: only a rank that died is blamed") {
  Observed observed;
  observed.world.presence.set_liveness(1, Liveness::kLeft);
  observed.world.presence.set_liveness(2, Liveness::kFailed);
  observed.world.presence.set_liveness(3, Liveness::kDead);
  CHECK(observed.failures.loss_of(1).subject().ranks.empty());
  CHECK(contains(observed.failures.loss_of(2).what(), "rank 2 has given up"));
  CHECK(observed.failures.loss_of(2).subject().ranks.empty());
  CHECK(observed.failures.loss_of(3).subject().ranks == std::vector<int>{3});
}

TEST_CASE("failures: an error has a host where all its ranks are there") {
  const Observed observed;
  const auto host_of = [&](std::vector<int> ranks) {
    return observed.failures.error_of({.text = "x", .ranks = std::move(ranks)}).subject().host;
  };
  CHECK(host_of({2, 3}) == "beta");
  CHECK(host_of({1, 2}) == "");
}

TEST_CASE("failures: the holder of a negotiation table is lost when it died or stopped") {
  EngineConfig config;
  config.stall_shutdown_time_s = 10;
  Observed observed(config);
  const auto check = [&](std::chrono::seconds waited) {
    return error_of([&] { observed.failures.check_holder(1, waited); });
  };
  CHECK(check(std::chrono::seconds(9)) == "");
  CHECK(contains(check(std::chrono::seconds(11)), "while it held the negotiation table"));
  observed.world.presence.set_liveness(1, Liveness::kDead);
  CHECK(contains(check(std::chrono::seconds(0)), "rank 1 died"));
}

TEST_CASE("failures: a rank whose engine did not start is lost, with the reason") {
  Observed observed;
  EngineConfig config = Observed::of_four({});
  config.rank = 2;
  config.peer_names = {"a", "b", "c", "d"};
  report_failed_start(config, *observed.space, "no memory");
  CHECK(observed.world.presence.liveness(2) == Liveness::kDead);
  CHECK(observed.world.alarms.count() > 0);
  const Error cause = observed.failures.cause();
  CHECK(std::string(cause.what()) == "c could not start: no memory");
  CHECK(cause.code() == ErrorCode::kPeerLost);
  CHECK(cause.subject().ranks == std::vector<int>{2});
}

}  // namespace hvd::test
