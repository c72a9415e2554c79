// N ranks as threads of one process: each has an engine of its own. They are one host with one
// space, or with TEST_RANKS_PER_HOST=n in the environment several of n ranks each, so that every
// test of an engine is one of worlds that span hosts, too. With TEST_DATA_PLANE=1 a data plane
// moves the data.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "linked_hosts.h"
#include "runtime/engine.h"
#include "threads_data_plane.h"

namespace hvd::test {

inline constexpr auto kPatience = std::chrono::seconds(60);

// 0: all.
inline int ranks_per_host() {
  const char* text = std::getenv("TEST_RANKS_PER_HOST");
  return text == nullptr ? 0 : std::atoi(text);
}

inline bool has_data_plane() { return std::getenv("TEST_DATA_PLANE") != nullptr; }

class WorldOfThreads {
 public:
  using Configure = std::function<void(EngineConfig&)>;
  using Connect = std::function<void(int rank, Connections&)>;

  explicit WorldOfThreads(
      int size, const Configure& configure = [](EngineConfig&) {})
      : WorldOfThreads(size, configure, [](int) { return std::vector<WatchedProcess>{}; }) {}

  // `watched(rank)`: the peers whose end this rank sees.
  WorldOfThreads(int size, const Configure& configure,
                 const std::function<std::vector<WatchedProcess>(int rank)>& watched)
      : WorldOfThreads(size, configure, watched,
                       ranks_per_host() == 0 || size <= ranks_per_host()
                           ? Hosts{}
                           : split_into_hosts(size, ranks_per_host())) {}

  // `hosts`: the ranks of each; none for one host.
  WorldOfThreads(
      int size, const Configure& configure,
      const std::function<std::vector<WatchedProcess>(int rank)>& watched, Hosts hosts,
      const Connect& connect = [](int, Connections&) {})
      : hosts_(std::move(hosts)) {
    do {
      spaces_.push_back(SharedSpace::in_process());
    } while (spaces_.size() < hosts_.size());
    std::vector<Connections> connections(static_cast<std::size_t>(size));
    if (!hosts_.empty()) connections = link_world(hosts_, size);
    if (has_data_plane()) {
      auto planes = test::data_planes(connections.size());
      for (std::size_t rank = 0; rank < connections.size(); ++rank) {
        connections[rank].world.data_plane = planes[rank];
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      EngineConfig config;
      config.rank = rank;
      config.size = size;
      config.usable_cores = 2;
      configure(config);
      connect(rank, connections[static_cast<std::size_t>(rank)]);
      engines_.push_back(
          std::make_unique<Engine>(config, space_of(rank), watched(rank),
                                   std::move(connections[static_cast<std::size_t>(rank)])));
    }
  }

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  void end(int rank) { engines_[static_cast<std::size_t>(rank)].reset(); }

  // On all ranks; call it while they are at rest.
  void add_set(int set, const std::vector<int>& members) {
    std::vector<SetLinks> links(engines_.size());
    if (!hosts_.empty()) links = link_set(hosts_, members, size());
    if (has_data_plane()) {
      auto planes = test::data_planes(members.size());
      for (std::size_t i = 0; i < members.size(); ++i) {
        links[static_cast<std::size_t>(members[i])].data_plane = planes[i];
      }
    }
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      engines_[rank]->add_process_set(set, members, std::move(links[rank]));
    }
  }
  void remove_set(int set) {
    for (const auto& engine : engines_) engine->remove_process_set(set);
    engines_.front()->discard_process_set(set);
    for (const auto& host : hosts_) engine(host.front()).discard_process_set(set);
  }
  // Where a set lies in the space; for ranks that are played by the test.
  std::byte* part_of(int set, int set_size) {
    const std::size_t offset = SpaceLayout{size()}.set_offset(set);
    parts_.push_back(spaces_.front()->map(offset, ProcessSetContext::region_bytes(set_size)));
    return parts_.back()->data();
  }

  // Runs body(rank, engine) on every rank at once; an escaped Error fails the test.
  void run(const std::function<void(int, Engine&)>& body) {
    std::vector<std::string> errors(engines_.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank, engine(rank));
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) CHECK(error == "");
  }

 private:
  std::shared_ptr<SharedSpace> space_of(int rank) const {
    return hosts_.empty() ? spaces_.front()
                          : spaces_[static_cast<std::size_t>(host_of(hosts_, rank))];
  }

  const Hosts hosts_;
  std::vector<std::shared_ptr<SharedSpace>> spaces_;
  std::vector<std::shared_ptr<Region>> parts_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

inline Request float_request(Kind kind, std::vector<std::int64_t> shape) {
  Request request;
  request.kind = kind;
  request.dtype = Dtype::kFloat32;
  request.dims_count = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), request.dims.begin());
  return request;
}

// One operation on one tensor, or a group, with what its spans refer to.
struct Operation {
  std::string name;
  std::vector<Request> requests;
  std::vector<Tensor> tensors;
  std::vector<std::int64_t> splits;

  Submission submission() const {
    return {.name = name, .requests = requests, .tensors = tensors, .splits = splits};
  }
};

inline Operation in_place(std::string name, std::vector<float>& values,
                          Kind kind = Kind::kAllreduce) {
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  return {.name = std::move(name),
          .requests = {float_request(kind, {static_cast<std::int64_t>(values.size())})},
          .tensors = {{.in = bytes, .out = bytes}},
          .splits = {}};
}

inline HandleId submit(Engine& engine, const Operation& operation, Intent intent = Intent::kWait,
                       int set = 0) {
  const Submission submission = operation.submission();
  return engine.submit(set, {&submission, 1}, intent);
}

inline Operation barrier() {
  return {
      .name = {}, .requests = {float_request(Kind::kBarrier, {})}, .tensors = {{}}, .splits = {}};
}

// Many operations under one handle.
inline HandleId submit_all(Engine& engine, std::span<const Operation> operations,
                           Intent intent = Intent::kWait) {
  std::vector<Submission> submissions;
  for (const Operation& operation : operations) submissions.push_back(operation.submission());
  return engine.submit(0, submissions, intent);
}

// Waits and returns the result; throws the operation's error.
inline std::vector<Output> finish(Engine& engine, HandleId handle) {
  if (!engine.wait(handle, kPatience)) throw std::runtime_error("the wait did not end");
  HandleTable::Result result = engine.take(handle);
  if (result.error) throw *result.error;
  return std::move(result.outputs);
}

// Returns the last rank to come.
inline int join(Engine& engine) {
  const Operation operation{
      .name = {}, .requests = {float_request(Kind::kJoin, {})}, .tensors = {{}}, .splits = {}};
  const std::vector<Output> outputs = finish(engine, submit(engine, operation));
  std::int32_t last = -1;
  std::memcpy(&last, outputs.at(0).bytes.get(), sizeof last);
  return last;
}

// Returns when the background threads have done all there is on a set: this thread does not help.
inline void leave_alone(Engine& engine, int set) {
  const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
  while (engine.pending_on(set) != 0 && now_ns() < deadline) std::this_thread::yield();
}

// The text of the error that `body` throws; "" for none.
// The error of what must fail.
template <typename Body>
Error caught(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "");
}

template <typename Body>
std::string error_of(Body&& body) {
  return caught(body).what();
}

}  // namespace hvd::test
