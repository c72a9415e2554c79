#include "runtime/counters.h"

#include <doctest/doctest.h>

#include "world_of_threads.h"

namespace hvd::test {
namespace {

TEST_CASE("the first name that comes again gives the pace, until it stays away") {
  Pacemaker pace;
  pace.beat(1, 1000, 1010);
  pace.beat(2, 1005, 1011);  // comes again, too
  pace.beat(1, 1010, 1030);
  CHECK(pace.steps.get() == 2);
  CHECK(pace.stepped_ns.get() == 30);
  CHECK(pace.last_step_ns.get() == 20);
  pace.beat(2, 1011, 1230);  // ten periods of the other one
  CHECK(pace.steps.get() == 2);
  pace.beat(2, 1230, 1240);
  pace.beat(1, 1030, 1241);
  CHECK(pace.steps.get() == 3);
  CHECK(pace.last_step_ns.get() == 10);
}

TEST_CASE("the last steps' times are remembered") {
  Pacemaker pace;
  for (std::int64_t step = 0; step < 300; ++step)
    pace.beat(1, step * step, (step + 1) * (step + 1));
  CHECK(pace.times_since(298) == std::vector<std::uint64_t>{597, 599});
  CHECK(pace.times_since(0).size() == 255);
  CHECK(pace.times_since(0).back() == 599);
  CHECK(pace.times_since(300).empty());
}

TEST_CASE("an engine counts what it does") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<std::vector<float>> tensors(4, std::vector<float>(10, 1.0F));
    std::vector<Operation> all;
    for (std::size_t i = 0; i < 4; ++i) {
      all.push_back(in_place("t" + std::to_string(i), tensors[i]));
    }
    finish(engine, submit_all(engine, all));
    std::vector<float> uneven(static_cast<std::size_t>(rank + 1));
    CHECK(error_of([&] { finish(engine, submit(engine, in_place("u", uneven))); }) != "");
    const Counters& counters = engine.counters();
    const KindCounts& sums = counters.kinds[static_cast<std::size_t>(Kind::kAllreduce)];
    CHECK(sums.operations.get() == 5);
    CHECK(sums.tensors.get() == 5);
    CHECK(sums.bytes.get() == 4 * 40 + uneven.size() * 4);
    CHECK(counters.buckets.get() == 2);
    CHECK(counters.fused_tensors.get() == 4);
    CHECK(counters.errors.get() == 1);
    CHECK(counters.queued_ns.get() > 0);
    CHECK(engine.pending_count() == 0);
  });
}

}  // namespace
}  // namespace hvd::test
