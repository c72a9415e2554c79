#include "runtime/tracer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/quiet_thread.h"

namespace hvd {

namespace {

constexpr Nanoseconds kRequestInterval = std::chrono::milliseconds(500);

}  // namespace

Tracer::Tracer(TraceConfig config, TracePlace place, TraceMemory memory)
    : config_(std::move(config)),
      place_(std::move(place)),
      memory_(std::move(memory)),
      recorder_(memory_(place_.rank), config_.events),
      timeline_(config_, place_, memory_),
      reports_(config_, place_, memory_, recorder_) {}

void Tracer::start() {
  if (!config_.timeline_path.empty()) {
    start_timeline(config_.timeline_path, config_.timeline_mark_cycles);
  }
  if (!recorder_.is_on()) return;
  announce();
  thread_ = quiet_thread([this] { run(); });
}

// Writes a file into the job's folder, where tools look for running ranks.
void Tracer::announce() {
  if (config_.presence.empty() || config_.folder.empty()) return;
  try {
    folder_.emplace(job_folder());
    last_request_ = folder_->recordings_wanted();  // of an earlier world
    folder_->write_presence(presence_name(), config_.presence);
  } catch (const std::exception& error) {
    folder_.reset();
    log(place_.log, LogLevel::kInfo,
        std::string("this rank cannot be asked for recordings: ") + error.what());
  }
}

JobFolder Tracer::job_folder() const {
  return {config_.folder, config_.is_chosen_folder, config_.job};
}

std::string Tracer::file_stem(int rank) const {
  return "rank-" + std::to_string(rank) + "-pid-" + std::to_string(getpid()) + "-world-" +
         std::to_string(config_.generation);
}

void Tracer::want_last_file() {
  if (!config_.presence.empty()) want_file("end", {}, place_.rank);
}

Tracer::~Tracer() { stop(); }

void Tracer::wake() {
  SharedWord& calls = recorder_.header().calls;
  calls.fetch_add(1);
  futex_wake_all(calls);
}

void Tracer::want_file(const std::string& reason, const std::string& detail, int rank) {
  if (!recorder_.is_on() || config_.folder.empty()) return;
  {
    const std::lock_guard guard(mutex_);
    const auto is_same = [&](const Wish& wish) {
      return wish.reason == reason && wish.rank == rank;
    };
    if (std::ranges::any_of(wishes_, is_same)) return;
    wishes_.push_back({reason, detail, rank});
  }
  wake();
}

std::string Tracer::write_file(const std::string& reason, const std::string& detail,
                               const std::string& path) {
  if (!recorder_.is_on()) {
    throw Error(ErrorCode::kInvalidArgument, "the flight recorder is switched off");
  }
  return file_of(recorder_, {reason, detail, place_.rank}, path, false);
}

void Tracer::run() {
  if (config_.stack_signal != 0) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, config_.stack_signal);
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }
  RecorderHeader& header = recorder_.header();
  Nanoseconds tracing_nap{};
  for (std::uint32_t seen = header.calls.load() - 1;;) {
    const bool is_called = seen != header.calls.load();
    seen = header.calls.load();
    const bool is_last = is_stopping_.load();  // earlier wishes are still carried out
    std::vector<Wish> wishes;
    {
      const std::lock_guard guard(mutex_);
      wishes.swap(wishes_);
    }
    if (const std::uint32_t wanted = header.dumps_wanted.load(); wanted != dumps_done_) {
      dumps_done_ = wanted;
      wishes.push_back({"signal", "SIGUSR1", place_.rank});
    }
    if (is_called || may_be_asked_from_afar()) look_for_requests(wishes);
    for (const Wish& wish : wishes) carry_out(wish);
    reports_.work();
    if (timeline_.is_active()) tracing_nap = timeline_.work(tracing_nap);
    if (is_last) return;
    const Nanoseconds nap = timeline_.is_active()      ? tracing_nap
                            : may_be_asked_from_afar() ? kRequestInterval
                                                       : kForever;
    futex_wait(header.calls, seen, nap);
  }
}

// A tool on this host wakes the tracer thread. A tool on another host cannot, but may write to the
// same folder.
bool Tracer::may_be_asked_from_afar() const {
  const bool spans_hosts = place_.local.size() < place_.rank_names.size();
  return spans_hosts && config_.is_chosen_folder && folder_;
}

void Tracer::look_for_requests(std::vector<Wish>& wishes) {
  if (!folder_) return;
  std::string wanted = folder_->recordings_wanted();
  if (wanted.empty() || wanted == last_request_) return;
  last_request_ = wanted;
  wishes.push_back({"request", std::move(wanted), place_.rank});
}

void Tracer::carry_out(const Wish& wish) {
  try {
    const bool is_own = wish.rank == place_.rank;
    const bool with_stacks = wish.reason == "signal" || wish.reason == "request";
    const std::string path = is_own ? file_of(recorder_, wish, {}, with_stacks)
                                    : file_of(RecorderView(memory_(wish.rank)), wish, {}, false);
    log(place_.log, LogLevel::kInfo, "the flight recorder's last events are in " + path);
  } catch (const std::exception& error) {
    log(place_.log, LogLevel::kInfo, std::string("no flight recorder file: ") + error.what());
  }
}

std::string Tracer::file_of(const RecorderView& recorder, const Wish& wish, const std::string& path,
                            bool with_stacks) {
  const std::lock_guard guard(files_mutex_);
  RecordingHead head{.rank = wish.rank,
                     .name = place_.name_of(wish.rank),
                     .written_by = place_.rank,
                     .reason = wish.reason,
                     .detail = wish.detail,
                     .world = config_.world,
                     .stacks = {},
                     .usage = {}};
  if (wish.rank == place_.rank) head.usage = usage_now().since(begun_);
  if (with_stacks) head.stacks = reports_.stacks();
  if (!path.empty()) {
    const std::size_t slash = path.rfind('/');
    const std::string parent = slash == path.npos ? "." : path.substr(0, slash + 1);
    write_recording(recorder, head, Directory(parent, Directory::Links::kFollow),
                    path.substr(slash == path.npos ? 0 : slash + 1));
    return path;
  }
  if (config_.folder.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no folder for recordings; give a path");
  }
  const JobFolder folder = job_folder();
  folder.keep_limits();
  const std::string name = file_stem(wish.rank) + "-" + wish.reason + kRecordingSuffix;
  write_recording(recorder, head, folder.directory(), name);
  return folder.path_of(name);
}

void Tracer::report(const std::string& text, const std::vector<int>& ranks) {
  if (!thread_.joinable()) {
    log(place_.log, LogLevel::kWarning, text);
    return;
  }
  reports_.add(text, ranks);
  wake();
}

void Tracer::start_timeline(const std::string& path, bool mark_cycles) {
  if (place_.rank != 0 || !recorder_.is_on()) return;
  timeline_.start(path, mark_cycles, thread_.joinable());
  if (thread_.joinable()) wake();
}

void Tracer::stop_timeline() { timeline_.stop(); }

void Tracer::end_traces() {
  timeline_.end_sending();
  timeline_.stop();
}

void Tracer::connect(std::map<int, int> leaders, SendNote send) {
  std::map<int, std::vector<int>> hosts;
  for (const auto& [rank, leader] : leaders) hosts[leader].push_back(rank);
  std::vector<std::vector<int>> others;
  for (auto& [leader, ranks] : hosts) {
    if (leader != place_.rank) others.push_back(std::move(ranks));
  }
  timeline_.connect(std::move(others), send);
  reports_.connect(std::move(leaders), std::move(send));
}

void Tracer::hear(int leader, NoteKind kind, int rank, const std::string& text) {
  switch (kind) {
    case NoteKind::kQuestion:
      reports_.note_question(leader, rank);
      break;
    case NoteKind::kAnswer:
      reports_.note_answer(rank, text);
      return;
    case NoteKind::kTrace:
      timeline_.receive(leader, text);
      return;
    case NoteKind::kBeginTrace:
      if (recorder_.is_on()) timeline_.begin_sending(rank != 0);
      break;
    case NoteKind::kEndTrace:
      timeline_.end_sending();
      return;
    default:
      return;
  }
  if (recorder_.is_on()) wake();
}

void Tracer::stop() {
  if (!thread_.joinable()) return;
  is_stopping_.store(true);
  reports_.stop();
  wake();
  thread_.join();
  if (folder_) folder_->remove(presence_name());
  end_traces();
}

void Tracer::abandon() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace hvd
