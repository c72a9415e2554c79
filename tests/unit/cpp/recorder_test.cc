#include "trace/recorder.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace hvd {
namespace {

TEST_CASE("events come back in order, with what was recorded") {
  Recorder recorder;
  recorder.record(EventKind::kSubmit, 7, 4096);
  recorder.record(EventKind::kDone, 7, 0);
  const std::vector<Event> events = recorder.snapshot();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == EventKind::kSubmit);
  CHECK(events[0].subject == 7);
  CHECK(events[0].value == 4096);
  CHECK(events[1].kind == EventKind::kDone);
  CHECK(events[0].time_ns <= events[1].time_ns);
}

TEST_CASE("the oldest events make room") {
  Recorder recorder;
  for (std::uint64_t i = 0; i < Recorder::kCapacity + 10; ++i) {
    recorder.record(EventKind::kWait, 0, i);
  }
  const std::vector<Event> events = recorder.snapshot();
  CHECK(events.size() == Recorder::kCapacity);
  CHECK(events.front().value == 10);
  CHECK(events.back().value == Recorder::kCapacity + 9);
}

TEST_CASE("several threads write while one reads") {
  Recorder recorder;
  std::vector<std::thread> writers;
  for (std::uint32_t writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&recorder, writer] {
      for (std::uint64_t i = 0; i < 20000; ++i) recorder.record(EventKind::kSubmit, writer, writer);
    });
  }
  for (int look = 0; look < 50; ++look) {
    for (const Event& event : recorder.snapshot()) CHECK(event.subject == event.value);
  }
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace hvd
