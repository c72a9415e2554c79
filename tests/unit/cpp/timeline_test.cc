#include "trace/timeline.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "core/clock.h"

namespace hvd {
namespace {

class TemporaryTimeline {
 public:
  TemporaryTimeline() { close(mkstemp(path_)); }
  ~TemporaryTimeline() { unlink(path_); }
  TimelineConfig config() const {
    return {.path = path_, .mark_cycles = true, .rank_names = {"rank 0 (pid 1)"}};
  }
  std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  char path_[32] = "/tmp/timeline_test.XXXXXX";
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

Label make_label(const std::string& name, int process_set = 0) {
  Label label{.process_set = static_cast<std::uint16_t>(process_set),
              .dtype = static_cast<std::uint8_t>(Dtype::kFloat32),
              .dims_count = 2,
              .dims = {2, 3}};
  label.set_name(name);
  return label;
}

// An operation of `rank` from its submission to its end, in bucket 5.
void run_through(Timeline& timeline, int rank, std::int64_t time_ns) {
  timeline.add(rank, {.time_ns = time_ns, .kind = EventKind::kSubmit, .subject = 7});
  timeline.add(rank, {.time_ns = time_ns + 1000, .kind = EventKind::kBucketStart, .subject = 5});
  timeline.add(rank, {.time_ns = time_ns + 1000, .kind = EventKind::kFused, .subject = 7});
  CHECK(timeline.has_open_bucket());
  timeline.add(rank, {.time_ns = time_ns + 2500, .kind = EventKind::kBucketDone, .subject = 5});
  CHECK(!timeline.has_open_bucket());
}

TEST_CASE("timeline: an operation is negotiated and runs, on a row for each rank") {
  const TemporaryTimeline file;
  const std::int64_t now = now_ns();
  {
    Timeline timeline(file.config());
    for (const int rank : {0, 1}) {
      timeline.add_label(rank, 7, make_label("allreduce.weight"));
      CHECK(timeline.knows_label(rank, 7));
      CHECK(!timeline.knows_label(rank, 8));
      run_through(timeline, rank, now);
    }
  }
  const std::string text = file.content();
  CHECK(count(text, R"("name":"allreduce.weight")") == 1);
  CHECK(count(text, R"("name":"NEGOTIATE_ALLREDUCE","ph":"B","pid":1)") == 2);
  CHECK(count(text, R"("name":"ALLREDUCE","ph":"B","pid":1)") == 2);
  CHECK(count(text, R"("ph":"E","pid":1,"tid":1)") == 2);
  CHECK(count(text, R"("args":{"dtype":"float32","shape":"[2, 3]"})") == 2);
  CHECK(count(text, R"("name":"1","ph":"X","pid":1,"tid":1)") == 1);
  CHECK(count(text, R"("name":"NATIVE_ALLREDUCE","ph":"X","pid":0)") == 2);
  CHECK(count(text, R"("dur":1.5)") == 2);
  CHECK(count(text, R"("name":"CYCLE_START")") == 1);
  CHECK(count(text, R"x("name":"rank 0 (pid 1)")x") == 1);
  CHECK(count(text, "start_time_since_epoch_in_micros") == 1);
}

TEST_CASE("timeline: times of another host are shifted") {
  const TemporaryTimeline file;
  {
    Timeline timeline(file.config());
    timeline.add_label(3, 7, make_label("x"));
    const std::int64_t year_ns = 365LL * 24 * 3600 * 1'000'000'000;
    const Event event{.time_ns = now_ns() + year_ns, .kind = EventKind::kSubmit, .subject = 7};
    timeline.add(3, event, -year_ns);
    timeline.note_clock("far \"away\"", -year_ns, 12, now_ns());
  }
  const std::string text = file.content();
  const std::size_t at = text.find("\"ts\":", text.find("NEGOTIATE_ALLREDUCE")) + 5;
  CHECK(std::stod(text.substr(at, 20)) < 60e6);
  CHECK(count(text, R"("host":"far \u0022away\u0022")") == 1);
  CHECK(count(text, R"("error_ns":12)") == 1);
}

TEST_CASE("timeline: what was begun ends where events are lost, or an error comes") {
  const TemporaryTimeline file;
  {
    Timeline timeline(file.config());
    timeline.add_label(0, 7, make_label("x", 2));
    timeline.add(0, {.time_ns = now_ns(), .kind = EventKind::kSubmit, .subject = 7});
    timeline.note_loss(0, 99, now_ns());
    timeline.add(0, {.time_ns = now_ns(), .kind = EventKind::kBucketDone, .subject = 5});
    timeline.add(0, {.time_ns = now_ns(), .kind = EventKind::kSubmit, .subject = 7});
    timeline.add(0, {.time_ns = now_ns(), .kind = EventKind::kError, .subject = 7, .value = 3});
    timeline.add(0, {.time_ns = now_ns(), .kind = EventKind::kSubmit, .subject = 1234});  // unknown
  }
  const std::string text = file.content();
  CHECK(count(text, R"("ph":"B")") == 2);
  CHECK(count(text, R"("ph":"E")") == 2);
  CHECK(count(text, R"("args":{"count":99})") == 1);
  CHECK(count(text, R"("name":"ERROR")") == 1);
  CHECK(count(text, "x (process set 2)") == 1);
}

}  // namespace
}  // namespace hvd
