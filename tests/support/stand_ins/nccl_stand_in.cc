// A stand-in for libnccl, for ranks that are threads of one process, over the stand-in for libcuda.
//
// The calls of a group are put into the streams when the program asks afterwards whether the
// communicator is still busy; a program that does not ask never starts them. In the streams a
// call waits for the calls of all ranks, or until the communicator is aborted. An abort returns
// when nothing runs on the device any more, also for other communicators.
//
// Collectives are also counted by the number of their ranks, as "ncclAllReduce of 2" when they
// are called, and as "ncclAllReduce of 2 in its stream" when they run there.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_stand_in.h"
#include "nccl_numbers.h"

namespace {

using namespace stand_in;

enum Result : int { kSuccess = 0, kInvalidUsage = 5, kInProgress = 7 };

struct UniqueId {
  std::array<char, 128> bytes;
};

// One rank's call of a collective.
struct Call {
  enum Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather } kind;
  static constexpr std::array kNames{"ncclAllReduce", "ncclReduce", "ncclReduceScatter",
                                     "ncclBroadcast", "ncclAllGather"};
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  int type;
  int op;
  int root;
};

struct Round {
  std::map<int, Call> calls;  // by rank
  bool is_done = false;
  bool is_broken = false;  // a call was aborted, and its memory may be freed
};

// The ranks of one id.
struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  std::map<int, int> devices;  // by rank that has come
  std::set<int> leaving;
  std::map<std::uint64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> messages;  // from, to
};

struct Comm {
  Comm(std::shared_ptr<Group> met, int rank) : group(std::move(met)), rank(rank) {}

  std::shared_ptr<Group> group;
  int rank;
  std::shared_ptr<bool> is_aborted = std::make_shared<bool>(false);  // under the group's mutex
  std::uint64_t rounds = 0;
  std::vector<std::function<void()>> submitted;  // not in a stream yet
  bool is_leaving = false;
};

struct Library {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Group>> groups;
  std::uint64_t ids = 0;
  std::condition_variable idle;
  std::map<int, int> running;  // calls in streams, by device
  // Collectives put into streams, and those that have ended, by device.
  std::map<int, std::uint64_t> started, ended;
};

Library& library() {
  static auto* const library = new Library;
  return *library;
}

// While it lives, the device is busy.
class Run {
 public:
  explicit Run(int device) : device_(device) {
    const std::lock_guard guard(library().mutex);
    ++library().running[device_];
  }
  ~Run() {
    const std::lock_guard guard(library().mutex);
    --library().running[device_];
    library().idle.notify_all();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

 private:
  const int device_;
};

// The place of a collective among those of its device.
std::uint64_t take_turn(int device) {
  const std::lock_guard guard(library().mutex);
  return library().started[device]++;
}

// Where a GPU has room for one kernel: waits for all earlier ones.
void await_turn(int device, std::uint64_t turn, const std::function<bool()>& is_aborted) {
  while (stand_in_has_few_kernels() != 0 && !is_aborted()) {
    std::unique_lock lock(library().mutex);
    const auto is_first = [&] { return library().ended[device] >= turn; };
    if (library().idle.wait_for(lock, std::chrono::milliseconds(10), is_first)) return;
  }
}

void end_turn(int device) {
  const std::lock_guard guard(library().mutex);
  ++library().ended[device];
  library().idle.notify_all();
}

void wait_until_idle(int device) {
  std::unique_lock lock(library().mutex);
  library().idle.wait(lock, [device] { return library().running[device] == 0; });
}

std::shared_ptr<Group> group_of(const UniqueId& id) {
  const std::lock_guard guard(library().mutex);
  std::shared_ptr<Group>& group = library().groups[id.bytes.data()];
  if (group == nullptr) group = std::make_shared<Group>();
  return group;
}

thread_local int depth = 0;
thread_local std::vector<std::pair<Comm*, std::function<void()>>> in_group;

std::byte* memory(const void* address) {
  return static_cast<std::byte*>(stand_in_host_address(reinterpret_cast<std::uint64_t>(address)));
}

void reduce_into(std::byte* out, const Round& round, const Call& call, std::size_t first) {
  const std::size_t width = size_of(call.type);
  for (std::size_t i = 0; i < call.count; ++i) {
    double result = 0;
    bool is_first = true;
    for (const auto& [_, other] : round.calls) {
      const double value = number_at(other.in + (first + i) * width, other.type);
      result = is_first ? value : combine(call.op, result, value);
      is_first = false;
    }
    put_number(out + i * width, call.type, result);
  }
}

// All ranks have called; the last one computes the results of all. It reads all inputs before it
// writes a result, because ranks may work in place.
void finish(Round& round) {
  std::map<int, std::vector<std::byte>> results;
  for (const auto& [rank, call] : round.calls) {
    const std::size_t bytes = call.count * size_of(call.type);
    std::vector<std::byte>& result = results[rank];
    if (call.kind == Call::kAllGather) {
      for (const auto& [_, other] : round.calls) {
        result.insert(result.end(), other.in, other.in + bytes);
      }
    } else if (call.kind == Call::kBroadcast) {
      const Call& giver = round.calls.at(call.root);
      result.assign(giver.in, giver.in + bytes);
    } else if (call.kind != Call::kReduce || call.root == rank) {
      result.resize(bytes);
      const bool is_part = call.kind == Call::kReduceScatter;
      reduce_into(result.data(), round, call,
                  is_part ? call.count * static_cast<std::size_t>(rank) : 0);
    }
  }
  for (const auto& [rank, call] : round.calls) {
    if (!results[rank].empty()) std::memcpy(call.out, results[rank].data(), results[rank].size());
  }
}

std::string name_of(const Call& call, const Group& group) {
  return std::string(Call::kNames[call.kind]) + " of " + std::to_string(group.size);
}

// Runs in a stream.
void meet(Group& group, int rank, std::uint64_t number, const Call& call, const bool& is_aborted) {
  std::unique_lock lock(group.mutex);
  if (is_aborted) return;
  const Run run(group.devices.at(rank));
  stand_in_count((name_of(call, group) + " in its stream").c_str());
  Round& round = group.rounds[number];
  round.calls[rank] = call;
  if (static_cast<int>(round.calls.size()) == group.size) {
    if (!round.is_broken) finish(round);
    round.is_done = true;
    group.changed.notify_all();
  }
  group.changed.wait(lock, [&] { return round.is_done || is_aborted; });
  if (!round.is_done) round.is_broken = true;
}

int device_of(Group& group, int rank) {
  const std::lock_guard guard(group.mutex);
  return group.devices.at(rank);
}

bool is_over(Group& group, const bool& is_aborted) {
  const std::lock_guard guard(group.mutex);
  return is_aborted;
}

struct Job {
  std::function<void()> work;
};

void run_job(void* argument) {
  const std::unique_ptr<Job> job(static_cast<Job*>(argument));
  job->work();
}

void enqueue(void* stream, std::function<void()> work) {
  stand_in_enqueue(stream, &run_job, new Job{std::move(work)});
}

int submit(Comm* comm, std::function<void()> put_into_stream) {
  if (depth == 0) {
    comm->submitted.push_back(std::move(put_into_stream));
  } else {
    in_group.emplace_back(comm, std::move(put_into_stream));
  }
  return kInProgress;
}

int collect(Comm* comm, void* stream, Call call) {
  stand_in_count(name_of(call, *comm->group).c_str());
  const std::uint64_t number = comm->rounds++;
  const auto group = comm->group;
  const auto is_aborted = comm->is_aborted;
  const int rank = comm->rank;
  return submit(comm, [=] {
    const int device = device_of(*group, rank);
    const std::uint64_t turn = take_turn(device);
    enqueue(stream, [=] {
      await_turn(device, turn, [&] { return is_over(*group, *is_aborted); });
      meet(*group, rank, number, call, *is_aborted);
      end_turn(device);
    });
  });
}

bool has_come(Group& group) { return static_cast<int>(group.devices.size()) == group.size; }

bool has_duplicates(const Group& group) {
  std::set<int> seen;
  return std::any_of(group.devices.begin(), group.devices.end(),
                     [&](const auto& each) { return !seen.insert(each.second).second; });
}

}  // namespace

#define CALL(name) \
  if (const int ordered = stand_in_count(name); ordered != 0) return ordered

extern "C" {

int ncclGetVersion(int* version) {
  CALL("ncclGetVersion");
  *version = 23203;
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "invalid usage" : "unhandled system error";
}

const char* ncclGetLastError(void*) { return "said by the stand-in"; }

int ncclGetUniqueId(UniqueId* id) {
  CALL("ncclGetUniqueId");
  const std::lock_guard guard(library().mutex);
  const std::string text = "stand-in " + std::to_string(++library().ids);
  id->bytes = {};
  std::copy(text.begin(), text.end(), id->bytes.begin());
  return kSuccess;
}

int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, void*) {
  CALL("ncclCommInitRankConfig");
  const std::shared_ptr<Group> group = group_of(id);
  const std::lock_guard guard(group->mutex);
  group->size = size;
  group->devices[rank] = stand_in_current_device();
  *comm = new Comm(group, rank);
  return kInProgress;
}

int ncclCommGetAsyncError(void* comm, int* state) {
  auto* asked = static_cast<Comm*>(comm);
  *state = stand_in_count("ncclCommGetAsyncError");
  if (*state != kSuccess) return kSuccess;
  if (!asked->submitted.empty()) {
    for (const auto& put_into_stream : std::exchange(asked->submitted, {})) put_into_stream();
    *state = kInProgress;
    return kSuccess;
  }
  const std::lock_guard guard(asked->group->mutex);
  if (!has_come(*asked->group)) *state = kInProgress;
  if (has_come(*asked->group) && has_duplicates(*asked->group)) *state = kInvalidUsage;
  if (asked->is_leaving && static_cast<int>(asked->group->leaving.size()) < asked->group->size) {
    *state = kInProgress;
  }
  return kSuccess;
}

int ncclCommFinalize(void* comm) {
  CALL("ncclCommFinalize");
  auto* leaving = static_cast<Comm*>(comm);
  const std::lock_guard guard(leaving->group->mutex);
  leaving->is_leaving = true;
  leaving->group->leaving.insert(leaving->rank);
  return kInProgress;
}

int ncclCommDestroy(void* comm) {
  CALL("ncclCommDestroy");
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

int ncclCommAbort(void* comm) {
  CALL("ncclCommAbort");
  const std::unique_ptr<Comm> aborted(static_cast<Comm*>(comm));
  int device = 0;
  {
    const std::lock_guard guard(aborted->group->mutex);
    *aborted->is_aborted = true;
    aborted->group->changed.notify_all();
    device = aborted->group->devices.at(aborted->rank);
  }
  wait_until_idle(device);
  return kSuccess;
}

int ncclGroupStart() {
  CALL("ncclGroupStart");
  ++depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--depth == 0) {
    for (auto& [comm, put_into_stream] : std::exchange(in_group, {})) {
      comm->submitted.push_back(std::move(put_into_stream));
    }
  }
  CALL("ncclGroupEnd");
  return kInProgress;
}

int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, void* comm,
                  void* stream) {
  CALL("ncclAllReduce");
  return collect(static_cast<Comm*>(comm), stream,
                 {Call::kAllReduce, memory(in), memory(out), count, type, op, 0});
}

int ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, void* comm,
               void* stream) {
  CALL("ncclReduce");
  return collect(static_cast<Comm*>(comm), stream,
                 {Call::kReduce, memory(in), memory(out), count, type, op, root});
}

int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, void* comm,
                      void* stream) {
  CALL("ncclReduceScatter");
  return collect(static_cast<Comm*>(comm), stream,
                 {Call::kReduceScatter, memory(in), memory(out), count, type, op, 0});
}

int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, void* comm,
                  void* stream) {
  CALL("ncclBroadcast");
  return collect(static_cast<Comm*>(comm), stream,
                 {Call::kBroadcast, memory(in), memory(out), count, type, 0, root});
}

int ncclAllGather(const void* in, void* out, std::size_t count, int type, void* comm,
                  void* stream) {
  CALL("ncclAllGather");
  return collect(static_cast<Comm*>(comm), stream,
                 {Call::kAllGather, memory(in), memory(out), count, type, 0, 0});
}

int ncclSend(const void* in, std::size_t count, int type, int peer, void* comm, void* stream) {
  CALL("ncclSend");
  const auto* sender = static_cast<Comm*>(comm);
  const auto group = sender->group;
  const std::pair route(sender->rank, peer);
  return submit(static_cast<Comm*>(comm), [=] {
    enqueue(stream, [=] {
      const std::byte* bytes = memory(in);
      const std::lock_guard guard(group->mutex);
      group->messages[route].emplace_back(bytes, bytes + count * size_of(type));
      group->changed.notify_all();
    });
  });
}

int ncclRecv(void* out, std::size_t count, int type, int peer, void* comm, void* stream) {
  CALL("ncclRecv");
  const auto* receiver = static_cast<Comm*>(comm);
  const auto group = receiver->group;
  const auto is_aborted = receiver->is_aborted;
  const std::pair route(peer, receiver->rank);
  return submit(static_cast<Comm*>(comm), [=] {
    enqueue(stream, [=] {
      std::unique_lock lock(group->mutex);
      const Run run(group->devices.at(route.second));
      auto& messages = group->messages[route];
      group->changed.wait(lock, [&] { return !messages.empty() || *is_aborted; });
      if (messages.empty()) return;
      std::memcpy(memory(out), messages.front().data(),
                  std::min(messages.front().size(), count * size_of(type)));
      messages.pop_front();
    });
  });
}

}  // extern "C"
