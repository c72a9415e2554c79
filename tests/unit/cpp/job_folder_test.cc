// What is removed where a user's own files lie beside recordings: recordings alone.
#include "trace/job_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "trace/json_file.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHourNs = 3600LL * 1'000'000'000;
constexpr std::uint64_t kMega = 1U << 20;
const std::string kMarker = ".horovod-recordings-of-";
const std::string kEnd = "rank-0-pid-1-world-1-end.hvdrec";

class TemporaryFolder {
 public:
  TemporaryFolder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~TemporaryFolder() { fs::remove_all(path_); }
  operator fs::path() const { return path_; }
  fs::path operator/(const std::string& name) const { return fs::path(path_) / name; }

 private:
  char path_[40] = "/tmp/job_folder_test.XXXXXX";
};

void write(const fs::path& path, const std::string& text = "words") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// Of a job that ended long ago: the first to go.
void make_job(const fs::path& folder, const std::string& marked_as) {
  write(folder / kEnd);
  write(folder / (kMarker + marked_as), "");
  fs::permissions(folder, fs::perms::owner_all);
  fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(24 * 30));
}

std::set<fs::path> content_of(const fs::path& folder) {
  std::set<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) found.insert(entry.path());
  return found;
}

std::vector<std::size_t> removed(const std::vector<KeptJob>& jobs) {
  return jobs_to_remove(jobs, 100 * kHourNs);
}

TEST_CASE("of jobs that ended well the last sixteen are kept") {
  std::vector<KeptJob> jobs;
  for (int i = 0; i < 18; ++i) jobs.push_back({.written_ns = (18 - i) * kHourNs});
  CHECK(removed(jobs) == std::vector<std::size_t>{17, 16});
  jobs[17].may_go = false;
  CHECK(removed(jobs) == std::vector<std::size_t>{16, 15});
}

TEST_CASE("jobs that failed are kept for a day, whatever came after them, within the size") {
  std::vector<KeptJob> jobs;
  for (int i = 0; i < 40; ++i) jobs.push_back({.has_failed = i < 20, .written_ns = 80 * kHourNs});
  CHECK(removed(jobs) == std::vector<std::size_t>{20, 21, 22, 23});
  jobs[0].written_ns = jobs[39].written_ns = 70 * kHourNs;
  CHECK(removed(jobs) == std::vector<std::size_t>{0, 39, 20, 21, 22});
}

TEST_CASE("where the size is exceeded those that ended well go first") {
  const auto job = [](bool has_failed, std::int64_t hour) {
    return KeptJob{
        .has_failed = has_failed, .written_ns = hour * kHourNs, .size_bytes = 80 * kMega};
  };
  CHECK(removed({job(true, 90), job(true, 91), job(false, 99)}).empty());
  CHECK(removed({job(true, 90), job(true, 91), job(true, 92), job(false, 99)}) ==
        std::vector<std::size_t>{3});
  CHECK(removed({job(true, 92), job(true, 91), job(true, 93), job(true, 94)}) ==
        std::vector<std::size_t>{1});
}

TEST_CASE("a folder full of a user's files stays as it is") {
  const TemporaryFolder base;
  const TemporaryFolder outside;
  write(outside / kEnd);
  for (int i = 0; i < 40; ++i) {
    const fs::path folder = base / ("thesis-" + std::to_string(i));
    for (const char* name : {"outcome", "data.part", "wanted", "model.running", "x.hvdrec"}) {
      write(folder / name);
    }
    write(folder / kEnd);
    fs::create_directories(folder / "empty");
    fs::create_directory_symlink(outside, folder / "away");
    REQUIRE(mkfifo((folder / "queue").c_str(), 0600) == 0);
    fs::create_directories(base / ("empty-" + std::to_string(i)));
  }
  write(base / "outcome");
  fs::create_directory_symlink(outside, base / "link");
  // Recordings under another name: a copy that is to be kept, or a link to a job's folder.
  for (int i = 0; i < 20; ++i) make_job(base / ("copy-" + std::to_string(i)), "job");
  make_job(outside / "job-x", "job-x");
  fs::create_directory_symlink(outside / "job-x", base / "job-x");
  // Others can write to it.
  make_job(base / "open", "open");
  fs::permissions(base / "open", fs::perms::all);
  const std::set<fs::path> before = content_of(base);
  const std::set<fs::path> before_outside = content_of(outside);
  for (int i = 0; i < 30; ++i)
    make_job(base / ("job-" + std::to_string(i)), "job-" + std::to_string(i));

  JobFolder(base.operator fs::path(), true, "own").keep_limits();

  std::set<fs::path> after = content_of(base);
  for (const fs::path& path : before) CHECK_MESSAGE(after.contains(path), path);
  CHECK(content_of(outside) == before_outside);
  int jobs = 0;
  for (int i = 0; i < 30; ++i) jobs += fs::exists(base / ("job-" + std::to_string(i))) ? 1 : 0;
  CHECK(jobs == 15);
}

TEST_CASE("what a user has put into a job's folder stays, and so does the folder") {
  const TemporaryFolder base;
  for (int i = 0; i < 20; ++i) {
    const std::string name = "job-" + std::to_string(i);
    make_job(base / name, name);
    for (const char* file : {"notes.txt", "data.part", "model.running", "all.hvdrec"}) {
      write(base / name / file);
    }
    fs::create_symlink("/etc/hosts", base / name / "rank-1-pid-1-world-1-end.hvdrec");
    fs::last_write_time(base / name, fs::file_time_type::clock::now() - std::chrono::hours(48));
  }
  JobFolder(base.operator fs::path(), true, "own").keep_limits();
  int recordings = 0;
  for (int i = 0; i < 20; ++i) {
    const fs::path folder = base / ("job-" + std::to_string(i));
    recordings += fs::exists(folder / kEnd) ? 1 : 0;
    for (const char* file : {"notes.txt", "data.part", "model.running", "all.hvdrec"}) {
      CHECK(fs::exists(folder / file));
    }
    CHECK(fs::is_symlink(folder / "rank-1-pid-1-world-1-end.hvdrec"));
  }
  CHECK(recordings == 15);
}

TEST_CASE("a job does not take a folder that has other things in it, or is another user's") {
  const TemporaryFolder base;
  write(base / "thesis" / "wanted");
  fs::create_directories(base / "mine");
  fs::create_directory_symlink(base / "mine", base / "link");
  fs::create_directories(base / "open");
  fs::permissions(base / "open", fs::perms::all);
  const std::string path = base.operator fs::path();
  CHECK_THROWS_WITH_AS(JobFolder(path, true, "thesis"),
                       doctest::Contains("thesis holds something else than recordings"), Error);
  CHECK_THROWS_AS(JobFolder(path, true, "link"), Error);
  CHECK_THROWS_WITH_AS(JobFolder(path, true, "open"), doctest::Contains("this user alone"), Error);
  JobFolder(path, true, "mine").write_presence("rank-0-pid-1-world-1.running", "{}");
  CHECK(fs::exists(base / "mine" / (kMarker + "mine")));
  JobFolder(path, true, "mine").remove("rank-0-pid-1-world-1.running");
  CHECK(!fs::exists(base / "mine" / "rank-0-pid-1-world-1.running"));
  REQUIRE(mkfifo((base / "mine" / "wanted").c_str(), 0600) == 0);
  CHECK(JobFolder(path, true, "mine").recordings_wanted().empty());  // and does not block
}

TEST_CASE("a timeline takes the place of a timeline alone") {
  const TemporaryFolder folder;
  const auto begun = [&](const std::string& name) {
    JsonFile(folder / name, R"({"a)", R"({"a":1})", 1U << 20).add(R"({"ab":2})");
    std::ifstream file(folder / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  write(folder / "empty", "");
  CHECK(begun("empty") == "[\n{\"ab\":2},\n{\"a\":1}\n]\n");
  CHECK(begun("empty") == begun("new"));
  write(folder / "thesis", "[\n1,\n2\n]\n");
  CHECK_THROWS_WITH_AS(begun("thesis"), doctest::Contains("left as it is"), Error);
  CHECK(fs::file_size(folder / "thesis") == 9);
  REQUIRE(mkfifo((folder / "queue").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(begun("queue"), doctest::Contains("not a regular file"), Error);
}

}  // namespace
}  // namespace hvd
