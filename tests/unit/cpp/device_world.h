// Ranks as threads whose tensors lie on GPUs, which stand-ins for libcuda and libnccl play.
#pragma once

#include <cuda_stand_in.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "world_of_threads.h"

namespace hvd::test {

// Memory of a GPU with numbers in it.
class DeviceFloats {
 public:
  DeviceFloats(Gpu& gpu, int device, const std::vector<float>& values)
      : block_(gpu.memory().allocate(device, values.size() * sizeof(float))),
        count_(values.size()),
        device_(device) {
    if (count_ != 0) std::memcpy(on_host(), values.data(), values.size() * sizeof(float));
  }

  std::byte* data() const { return block_->data; }
  int device() const { return device_; }
  std::size_t count() const { return count_; }
  // When the GPU has done with it.
  std::vector<float> values() const { return {on_host(), on_host() + count_}; }

 private:
  float* on_host() const { return static_cast<float*>(stand_in_host_address(block_->address())); }

  DeviceBlockPtr block_;
  std::size_t count_;
  int device_;
};

// What one rank has: a GPU and a stream of its program.
struct DeviceRank {
  std::shared_ptr<Gpu> gpu;
  int device;
  std::unique_ptr<CudaStream> stream;

  DeviceFloats floats(const std::vector<float>& values) const { return {*gpu, device, values}; }
  // Waits until the program's stream has done all.
  void synchronize() const { stand_in_synchronize(stream->get(), device); }
  StreamDependencyPtr depart() const {
    auto flight = std::make_shared<StreamDependency>(
        gpu, [on = stream->get()](int) -> cuda::Stream { return on; });
    flight->depart_from(device);
    return flight;
  }
};

struct DeviceOptions {
  std::vector<std::string> nccl = {NCCL_STAND_IN};  // empty: there is none
  bool has_own_gpus = true;                         // every rank
  DeviceRoute route = DeviceRoute::kAny;
  int streams = 1;
  double timeout_s = 30.0;
  std::size_t ipc_pass_bytes = 64UL << 10;  // which many tensors are longer than
  bool is_hierarchical = false;             // allreduce and allgather
  Hosts hosts = {};                         // none: one, or as the environment says
  LogLevel log_level = LogLevel::kError;
  bool has_pools = true;  // of memory, every GPU
  std::function<std::vector<WatchedProcess>(int rank)> watched = [](int) {
    return std::vector<WatchedProcess>{};
  };
  WorldOfThreads::Configure configure = [](EngineConfig&) {};
  WorldOfThreads::Connect connect = [](int, Connections&) {};
};

class DeviceWorld {
 public:
  explicit DeviceWorld(int size, const DeviceOptions& options = {}) {
    stand_in_reset();
    stand_in_set_gpus(8);
    stand_in_set_pools(options.has_pools ? 1 : 0);
    std::vector<std::shared_ptr<GpuAccess>> accesses;
    for (int rank = 0; rank < size; ++rank) {
      accesses.push_back(std::make_shared<GpuAccess>(CUDA_STAND_IN, options.nccl));
      auto gpu = accesses.back()->open();
      const int device = options.has_own_gpus ? rank : 0;
      auto stream = std::make_unique<CudaStream>(gpu->driver(), device);
      ranks_.push_back({.gpu = gpu, .device = device, .stream = std::move(stream)});
    }
    const auto configure = [&](EngineConfig& config) {
      config.log.level = options.log_level;
      options.configure(config);
    };
    const auto connect = [&](int rank, Connections& connections) {
      options.connect(rank, connections);
      DevicePlane& plane = connections.devices;
      plane.gpus = accesses[static_cast<std::size_t>(rank)];
      plane.config.routes.fill(options.route);
      plane.config.streams = options.streams;
      plane.config.timeout_s = options.timeout_s;
      for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather}) {
        plane.config.is_hierarchical[static_cast<std::size_t>(kind)] = options.is_hierarchical;
      }
      plane.config.ipc_pass_bytes = options.ipc_pass_bytes;
      plane.config.default_device = ranks_[static_cast<std::size_t>(rank)].device;
    };
    const bool is_one_host = ranks_per_host() == 0 || size <= ranks_per_host();
    Hosts hosts = is_one_host ? Hosts{} : split_into_hosts(size, ranks_per_host());
    if (!options.hosts.empty()) hosts = options.hosts;
    world_ = std::make_unique<WorldOfThreads>(size, configure, options.watched, std::move(hosts),
                                              connect);
  }

  // Together: who leaves alone waits a moment for the others.
  ~DeviceWorld() {
    world_->run([](int, Engine& engine) { engine.shutdown(); });
  }
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  WorldOfThreads& engines() { return *world_; }
  DeviceRank& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void run(const std::function<void(int, Engine&, DeviceRank&)>& body) {
    world_->run([&](int number, Engine& engine) { body(number, engine, rank(number)); });
  }

 private:
  std::vector<DeviceRank> ranks_;
  std::unique_ptr<WorldOfThreads> world_;
};

inline Operation on_device(std::string name, Kind kind, const DeviceFloats& in, std::byte* out,
                           std::vector<std::int64_t> shape) {
  return {.name = std::move(name),
          .requests = {float_request(kind, std::move(shape))},
          .tensors = {{.in = in.data(), .out = out, .device = in.device()}},
          .splits = {}};
}

inline Operation on_device_in_place(std::string name, const DeviceFloats& values,
                                    Kind kind = Kind::kAllreduce) {
  return on_device(std::move(name), kind, values, values.data(),
                   {static_cast<std::int64_t>(values.count())});
}

inline HandleId submit(Engine& engine, const DeviceRank& rank, const Operation& operation,
                       Intent intent = Intent::kWait, int set = 0) {
  Submission submission = operation.submission();
  submission.dependency = rank.depart();
  return engine.submit(set, {&submission, 1}, intent);
}

// As a binding does: the program's stream waits, this thread does not. Throws the operation's
// error.
inline std::vector<Output> finish_on_device(Engine& engine, HandleId handle) {
  if (!engine.wait(handle, kPatience)) throw std::runtime_error("the wait did not end");
  HandleTable::Result result = engine.take(handle);
  for (const StreamDependencyPtr& dependency : result.dependencies) dependency->arrive();
  if (result.error) throw *result.error;
  return std::move(result.outputs);
}

inline std::vector<float> floats_of(const Output& output) {
  std::size_t count = 1;
  for (const std::int64_t dim : output.shape) count *= static_cast<std::size_t>(dim);
  const auto* values = static_cast<const float*>(stand_in_host_address(output.block->address()));
  return {values, values + count};
}

// While it lives, nothing goes on in a stream.
class BusyStream {
 public:
  explicit BusyStream(const DeviceRank& rank) {
    stand_in_enqueue(rank.stream->get(), &BusyStream::wait, new std::shared_ptr<Gate>(gate_));
  }
  ~BusyStream() { release(); }
  void release() {
    gate_->is_open = true;
    gate_->is_open.notify_all();
  }

 private:
  struct Gate {
    std::atomic<bool> is_open{false};
  };
  static void wait(void* argument) {
    const std::unique_ptr<std::shared_ptr<Gate>> gate(
        static_cast<std::shared_ptr<Gate>*>(argument));
    (*gate)->is_open.wait(false);
  }

  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

}  // namespace hvd::test
