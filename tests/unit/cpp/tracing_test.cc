// The tracer of whole worlds: timelines of one host and of several, files, stall reports.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/activity_reports.h"
#include "runtime/stall_log.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return std::string(path_) + "/" + name; }

 private:
  char path_[32] = "/tmp/tracing_test.XXXXXX";
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<WatchedProcess> no_process(int) { return {}; }

void sum_a_few(Engine& engine) {
  for (int round = 0; round < 5; ++round) {
    std::vector<float> values(1000, 1.0F);
    finish(engine, submit(engine, in_place("allreduce.weight", values)));
  }
}

TEST_CASE("a timeline shows the ranks of all hosts, on one clock") {
  for (const Hosts& hosts : {Hosts{}, Hosts{{0, 2}, {1}, {3}}}) {
    const TemporaryFolder folder;
    {
      WorldOfThreads world(
          4,
          [&](EngineConfig& config) {
            config.trace.timeline_path = folder.path("timeline.json");
            config.trace.timeline_mark_cycles = true;
          },
          no_process, hosts);
      world.run([](int, Engine& engine) { sum_a_few(engine); });
      world.engine(0).tracer().stop_timeline();
    }
    const std::string text = content_of(folder.path("timeline.json"));
    for (const std::string rank : {"0", "1", "2", "3"}) {
      const std::string begin = R"("name":"NEGOTIATE_ALLREDUCE","ph":"B","pid":1,"tid":)" + rank;
      CHECK_MESSAGE(text.find(begin) != std::string::npos, "rank ", rank, " of ", hosts.size(),
                    " hosts: ", text);
    }
    CHECK(text.find("CYCLE_START") != std::string::npos);
    CHECK((text.find("CLOCK_ALIGNED") != std::string::npos) == !hosts.empty());
    CHECK(text.ends_with("]\n"));
  }
}

TEST_CASE("when the world ends by an error its recorder is written down, that of the dead too") {
  const TemporaryFolder folder;
  {
    WorldOfThreads world(2, [&](EngineConfig& config) {
      config.trace.folder = folder.path("recordings");
      config.trace.job = "job-1";
      config.stall_check_time_s = 0.05;
      config.stall_shutdown_time_s = 0.1;
      config.log.level = LogLevel::kFatal;
    });
    std::vector<float> values(10);
    Engine& engine = world.engine(0);
    CHECK_THROWS(finish(engine, submit(engine, in_place("lonely", values))));
  }
  const std::string path = folder.path("recordings/job-1/rank-0-pid-") + std::to_string(getpid()) +
                           "-world-1-error.hvdrec";
  const std::string text = content_of(path);
  CHECK(text.starts_with(R"({"horovod_recording":1,"rank":0)"));
  CHECK(text.find(R"("reason":"error","detail":")") != std::string::npos);
  CHECK(text.find("lonely") != std::string::npos);
}

TEST_CASE("what a rank has done last can be told from its recorder") {
  WorldOfThreads world(1);
  Engine& engine = world.engine(0);
  const Recorder& recorder = engine.tracer().recorder();
  CHECK(last_operations(recorder, now_ns()) == "has submitted nothing");
  sum_a_few(engine);
  const std::string text = last_operations(recorder, now_ns());
  CHECK(text.starts_with("has last submitted allreduce 'weight' 0."));
  CHECK(text.find(" s ago (done), before that allreduce 'weight' 0.") != std::string::npos);
  engine.shutdown();
  CHECK(last_operations(recorder, now_ns()) == "has shut down");
}

TEST_CASE("of a stack deep in packages the innermost call and the program's are shown") {
  const std::string inner = "  File \"/env/lib/python3.11/site-packages/a.py\", line 1 in wait\n";
  const std::string outer = "  File \"/env/lib/python3.11/site-packages/b.py\", line 2 in fit\n";
  const std::string own = "  File \"/home/me/train.py\", line 9 in <module>\n";
  const std::string begin = "Thread 0x2 (most recent call first):\n";
  const auto shown = [](const std::string& line) { return line.substr(2); };
  CHECK(main_stack(begin + inner + outer + outer + own, "", 2) == shown(inner) + shown(own));
  CHECK(main_stack(begin + inner + own + outer + own, "", 9) ==
        shown(inner) + shown(own) + shown(outer) + shown(own));
  CHECK(main_stack(begin + inner + outer, "", 9) == shown(inner) + shown(outer));
  CHECK(main_stack(begin + own + outer, "", 9) == shown(own) + shown(outer));
  const std::string library = "  File \"/usr/lib/python3.11/threading.py\", line 3 in wait\n";
  const std::string named = "  File \"/home/me/python3_train.py\", line 4 in main\n";
  CHECK(main_stack(begin + inner + library + named, "", 9) == shown(inner) + shown(named));
}

TEST_CASE("of faulthandler's text the main thread's part is shown") {
  const std::string text =
      "Thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in idle\n\n"
      "Thread 0x2 (most recent call first):\n  File \"b.py\", line 2 in inner\n"
      "  File \"b.py\", line 9 in <module>\n";
  CHECK(main_stack(text, "> ", 9) ==
        "> File \"b.py\", line 2 in inner\n> File \"b.py\", line 9 in <module>\n");
  CHECK(main_stack(text, "", 1) == "File \"b.py\", line 2 in inner\n");
  CHECK(main_stack("", "", 9) == "");
  CHECK(main_stack("Thread 0x1 (most recent call first):", "", 9) == "");
  CHECK(!is_stopped(getpid()));
}

TEST_CASE("a stall is said once, and again when other ranks are missing") {
  StallLog stalls;
  std::map<StallLog::Ranks, StallLog::Stall> over;
  stalls.note({1, 2}, "a", 60);
  stalls.note({1, 2}, "b", 61);
  auto begun = stalls.end_look(over);
  REQUIRE(begun.size() == 1);
  CHECK(begun.at({1, 2}).titles == std::vector<std::string>{"a", "b"});
  CHECK(begun.at({1, 2}).longest_s == 61);
  stalls.note({1, 2}, "c", 70);
  CHECK(stalls.end_look(over).empty());
  CHECK(over.empty());
  stalls.note({2}, "c", 80);
  begun = stalls.end_look(over);
  CHECK(begun.contains({2}));
  CHECK(over.contains({1, 2}));
  CHECK(stalls.end_look(over).empty());
  CHECK(over.contains({2}));
  CHECK(stalls.is_empty());
}

}  // namespace
}  // namespace hvd::test
