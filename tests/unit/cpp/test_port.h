// The port to the engine of one rank, as Python gives it to plugins.
#pragma once

#include <memory>
#include <optional>

#include "bindings/engine_port.h"
#include "device_world.h"

namespace hvd::test {

class TestPort final : public EnginePort {
 public:
  TestPort(Engine& engine, DeviceRank& rank) : engine_(engine), rank_(rank) {}

  void start(int set, std::span<const Submission> submissions, Continuation then) override {
    try {
      engine_.submit(set, submissions, Intent::kCompute, then);
    } catch (const Error& error) {
      then({.error = error, .outputs = {}});
    }
  }
  std::optional<Result> run(int, std::span<const Submission>, Continuation) override { return {}; }
  std::variant<Departure, Error> depart(cuda::Stream stream, std::uint64_t address) override {
    const int device = rank_.gpu->driver().device_of(address);
    auto flight = std::make_shared<StreamDependency>(rank_.gpu, [stream](int) { return stream; });
    flight->depart_from(device);
    return Departure{.gpu = rank_.gpu, .device = device, .dependency = flight};
  }
  void keep_failure(const Error&) override {}
  // There is one set, of one rank.
  std::optional<int> number(WorldNumber what, int set) override {
    if (set != 0) return std::nullopt;
    return what == WorldNumber::kSize ? 1 : 0;
  }

 private:
  Engine& engine_;
  DeviceRank& rank_;
};

}  // namespace hvd::test
