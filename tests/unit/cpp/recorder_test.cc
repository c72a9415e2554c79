#include "trace/recorder.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace hvd {
namespace {

Recorder make_recorder(std::uint32_t events) {
  return {Region::allocate(Recorder::region_bytes()), events};
}

TEST_CASE("events come back in order, with what was recorded") {
  Recorder recorder = make_recorder(64);
  recorder.record_now({.kind = EventKind::kSubmit,
                       .detail = 1,
                       .process_set = 3,
                       .subject = 7,
                       .value = 1ULL << 40});
  recorder.record_now({.kind = EventKind::kBucketDone, .subject = ~0U});
  const RecorderView::Found found = recorder.read(0);
  REQUIRE(found.events.size() == 2);
  const Event& first = found.events[0];
  CHECK(first.kind == EventKind::kSubmit);
  CHECK(first.detail == 1);
  CHECK(first.process_set == 3);
  CHECK(first.subject == 7);
  CHECK(first.value == 1ULL << 40);
  CHECK(found.events[1].subject == ~0U);
  CHECK(first.time_ns <= found.events[1].time_ns);
  CHECK(found.end == 2);
  CHECK(recorder.last(1).front().kind == EventKind::kBucketDone);
}

TEST_CASE("the oldest events make room, and a reader hears how many") {
  Recorder recorder = make_recorder(100);
  REQUIRE(recorder.capacity() == 128);
  for (std::uint64_t i = 0; i < 138; ++i) recorder.record({.kind = EventKind::kWait, .value = i});
  const RecorderView::Found found = recorder.read(2);
  CHECK(found.lost == 8);
  REQUIRE(found.events.size() == 128);
  CHECK(found.events.front().value == 10);
  CHECK(found.events.back().value == 137);
  CHECK(recorder.read(found.end).events.empty());
}

TEST_CASE("a batch that is not used up leaves nothing that a reader would wait for") {
  Recorder recorder = make_recorder(64);
  {
    Recorder::Batch batch(recorder, 3);
    batch.add({.kind = EventKind::kSubmit});
    const RecorderView::Found early = recorder.read(0, true);
    CHECK(early.events.size() == 1);
    CHECK(early.end == 1);
  }
  const RecorderView::Found found = recorder.read(1, true);
  CHECK(found.end == 3);
  CHECK(found.events.back().kind == EventKind::kNone);
}

TEST_CASE("switched off it keeps nothing") {
  Recorder recorder = make_recorder(0);
  recorder.record_now({.kind = EventKind::kSubmit});
  {
    Recorder::Batch batch(recorder, 5);
  }
  CHECK(recorder.add_label({}) == Recorder::kNoLabel);
  CHECK(recorder.read(0).events.empty());
}

TEST_CASE("a label stays until many others came") {
  Recorder recorder = make_recorder(64);
  Label label{.key = 5, .process_set = 2};
  label.set_name(std::string(200, 'x') + "weight");
  const std::uint32_t id = recorder.add_label(label);
  const auto found = recorder.label(id);
  REQUIRE(found.has_value());
  CHECK(found->text().ends_with("xxweight"));
  CHECK(found->text().size() == Label::kNameBytes);
  CHECK(!recorder.is_forgotten(id));
  for (std::uint32_t i = 0; i < Recorder::kLabels; ++i) recorder.add_label({});
  CHECK(recorder.is_forgotten(id));
  CHECK(!recorder.label(id).has_value());
}

TEST_CASE("several threads write while one reads") {
  Recorder recorder = make_recorder(1024);
  std::vector<std::thread> writers;
  for (std::uint32_t writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&recorder, writer] {
      for (std::uint64_t i = 0; i < 20000; ++i) {
        recorder.record({.kind = EventKind::kSubmit, .subject = writer, .value = writer});
      }
    });
  }
  for (int look = 0; look < 50; ++look) {
    for (const Event& event : recorder.read(0).events) CHECK(event.subject == event.value);
  }
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace hvd
