// The stall monitor alone: two ranks without threads, a clock of the test's own.
#include "runtime/stall_monitor.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "contains.h"
#include "runtime/submitter.h"
#include "world_of_threads.h"

namespace hvd::test {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// What the monitor of one rank needs, and what it has said.
struct Monitored {
  explicit Monitored(int rank, const std::shared_ptr<SharedSpace>& space, EngineConfig config = {})
      : world(with_rank(std::move(config), rank), *space),
        failures(world),
        sets(world, failures, space, {}, {}),
        doorbells(world, sets),
        role(lock, world.presence, doorbells),
        recorder(Region::allocate(Recorder::region_bytes()), 0),
        results(lock, 0, false),
        monitor(
            {lock, world, failures, recorder, counters, results, sets, doorbells, role},
            [this](const std::string& text, const std::vector<int>&) { reports.push_back(text); }) {
  }

  static EngineConfig with_rank(EngineConfig config, int rank) {
    config.rank = rank;
    config.size = 2;
    return config;
  }

  // Submits at `now`.
  void submit(const std::string& name, std::int64_t now) {
    ProcessSetContext& context = *sets.find(0);
    Entry& entry = context.tensors.find_or_create(name, name);
    entry.requests = {float_request(Kind::kAllreduce, {4})};
    entry.requests.front().rank = world.config.rank;
    entry.tensors = {{}};
    entry.signature = signature_of(entry.requests);
    entry.submitted_ns = now;
    {
      const SharedLock held = context.negotiation.lock();
      context.negotiation.arrive(entry.key, entry.requests, {}, entry.signature, entry.ref);
    }
    context.tensors.bind_slot(entry);
    context.tensors.begin(entry);
  }

  EngineLock lock;
  World world;
  Failures failures;
  ProcessSets sets;
  Doorbells doorbells;
  ProgressRole role;
  Recorder recorder;
  Counters counters;
  HandleTable results;
  std::vector<std::string> reports;
  StallMonitor monitor;
};

}  // namespace

TEST_CASE("stall monitor: one report names the missing rank when the stall time is over") {
  const auto space = SharedSpace::in_process();
  Monitored rank0(0, space);
  rank0.submit("x", kSecond);
  rank0.monitor.check(60 * kSecond);
  CHECK(rank0.reports.empty());
  rank0.monitor.check(62 * kSecond);
  rank0.monitor.check(63 * kSecond);
  rank0.monitor.check(90 * kSecond);
  REQUIRE(rank0.reports.size() == 1);
  CHECK(contains(rank0.reports[0], "allreduce 'x' waits for ranks that did not submit it"));
  CHECK(contains(rank0.reports[0], "Missing ranks: 1 (rank 1)"));
  CHECK(rank0.counters.stalls.get() == 1);
  CHECK(!rank0.world.alarms.first());
}

TEST_CASE("stall monitor: nothing is reported when all ranks have submitted") {
  const auto space = SharedSpace::in_process();
  Monitored rank0(0, space);
  Monitored rank1(1, space);
  rank0.submit("x", kSecond);
  rank1.submit("x", 30 * kSecond);
  rank0.monitor.check(100 * kSecond);
  CHECK(rank0.reports.empty());
}

TEST_CASE("stall monitor: the world ends at the shutdown time") {
  const auto space = SharedSpace::in_process();
  EngineConfig config;
  config.stall_shutdown_time_s = 120;
  Monitored rank1(1, space, config);
  rank1.submit("x", kSecond);
  rank1.monitor.check(119 * kSecond);
  CHECK(!rank1.world.alarms.first());
  rank1.monitor.check(122 * kSecond);
  const auto alarm = rank1.world.alarms.first();
  REQUIRE(alarm);
  CHECK(alarm->code == ErrorCode::kTimeout);
  CHECK(alarm->ranks == std::vector<int>{0});
  CHECK(alarm->operation == "allreduce 'x'");
}

TEST_CASE("stall monitor: a bucket behind one of another set names no rank; the other one does") {
  Monitored rank0(0, SharedSpace::in_process());
  rank0.sets.add(1, {0, 1}, {});
  ProcessSetContext& behind = *rank0.sets.find(0);
  ProcessSetContext& before = rank0.sets.context_of(1, [] { return std::string("test"); });
  for (ProcessSetContext* context : {&behind, &before}) {
    context->is_running = true;
    context->blocked_since_ns = kSecond;
  }
  behind.blocked_on = {.is_polled = true, .is_for_turn = true};
  before.blocked_on = {.rank = 1, .target = 1};
  rank0.monitor.check(62 * kSecond);
  REQUIRE(rank0.reports.size() == 1);
  CHECK(contains(rank0.reports[0], "rank 1 has not moved for 61.0 s in the middle of"));
  before.is_running = false;
  rank0.monitor.check(63 * kSecond);
  REQUIRE(rank0.reports.size() == 2);
  CHECK(contains(rank0.reports[1], "the data plane on rank 0 has not moved for 62.0 s"));
}

TEST_CASE("stall monitor: switched off, it says nothing") {
  EngineConfig config;
  config.stall_check = false;
  Monitored rank0(0, SharedSpace::in_process(), config);
  rank0.submit("x", kSecond);
  rank0.monitor.check(1000 * kSecond);
  CHECK(rank0.reports.empty());
}

}  // namespace hvd::test
