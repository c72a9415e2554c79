// N ranks as threads of one process: each has an engine of its own, all share one region.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine.h"

namespace hvd::test {

inline constexpr auto kPatience = std::chrono::seconds(60);

class WorldOfThreads {
 public:
  using Configure = std::function<void(EngineConfig&)>;

  explicit WorldOfThreads(
      int size, const Configure& configure = [](EngineConfig&) {})
      : region_(Region::allocate(Engine::region_bytes(size))) {
    for (int rank = 0; rank < size; ++rank) {
      EngineConfig config;
      config.rank = rank;
      config.size = size;
      config.usable_cores = 2;
      configure(config);
      engines_.push_back(std::make_unique<Engine>(config, region_, std::vector<WatchedProcess>{}));
    }
  }

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[static_cast<std::size_t>(rank)]; }
  void end(int rank) { engines_[static_cast<std::size_t>(rank)].reset(); }

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
  std::shared_ptr<Region> region_;
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

inline Submission in_place(std::string_view name, std::vector<float>& values,
                           Kind kind = Kind::kAllreduce) {
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  return {.name = name,
          .request = float_request(kind, {static_cast<std::int64_t>(values.size())}),
          .in = bytes,
          .out = bytes};
}

inline HandleId submit(Engine& engine, const Submission& submission,
                       Intent intent = Intent::kWait) {
  return engine.submit({&submission, 1}, intent);
}

// Waits and returns the result; throws the operation's error.
inline std::vector<Output> finish(Engine& engine, HandleId handle) {
  if (!engine.wait(handle, kPatience)) throw std::runtime_error("the wait did not end");
  HandleTable::Result result = engine.take(handle);
  if (result.error) throw *result.error;
  return std::move(result.outputs);
}

// The text of the error that `body` throws; "" for none.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace hvd::test
