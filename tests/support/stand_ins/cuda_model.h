// What the stand-in for libcuda models: GPUs, their streams and their memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_stand_in.h"
#include "ptx_machine.h"

namespace stand_in {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kLaunchFailed = 719;
constexpr int kInternalErrorOfNccl = 3;
constexpr int kMostGpus = 16;
constexpr std::size_t kLeastShared = 128 * 1024;
constexpr std::uint64_t kDeviceBit = std::uint64_t{1} << 62;
constexpr std::size_t kMemory = std::size_t{80} << 30;  // of a GPU without a limit

struct Context {
  int device;
};

class Stream {
 public:
  explicit Stream(int device) : device(device), thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard guard(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void put(std::function<void()> work) {
    {
      const std::lock_guard guard(mutex_);
      queue_.push_back(std::move(work));
      ++put_;
    }
    changed_.notify_all();
  }

  // Waits for the work that is in it now.
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, goal = put_] { return done_ >= goal; });
  }

  const int device;
  bool is_capturing = false;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto work = queue_.front();
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t put_ = 0;
  std::uint64_t done_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

// Shared with its waiters: CUDA allows events to be destroyed earlier.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t reached = 0;
};

struct Event {
  int device;
  std::uint64_t recorded = 0;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
};

struct Pool {
  int device;
  bool has_internal_reuse = true;
  Event freed{};  // recorded: so many were put into streams
};

struct Failure {
  int code;
  long calls;
};

struct World {
  std::mutex mutex;
  int gpus = 2;
  std::map<std::string, long> calls;
  std::map<std::string, Failure> failures;
  long calls_until_failure = -1;  // less than 0: there is no more to come
  std::string failed;
  struct Block {
    std::size_t size_bytes;
    int device;
    int descriptor = -1;  // of shared memory
    int openings = 0;     // of another's memory
    Pool* pool = nullptr;
    bool is_host = false;
    bool is_left_over = false;  // an earlier test allocated it, and its GPU still frees it
  };
  std::map<std::uint64_t, Block> blocks;  // by host address
  std::size_t limit_bytes = 0;            // of each GPU; 0: none
  bool has_pools = true;
  std::map<int, std::shared_ptr<Stream>> default_streams;
  std::map<void*, std::shared_ptr<Stream>> streams;  // others
  Context contexts[kMostGpus];
  bool has_wrong_kernels = false;
  std::atomic<bool> has_few_kernels = false;
};

World& world();

// The contexts of this thread; the last one is current.
extern thread_local std::vector<Context*> current;

Stream& stream_of(void* stream, int device);
std::byte* seen_from_host(std::uint64_t address);
// Waits for the work that is in the streams of the device now.
void wait_for_device(int device);
// The block of an address, as the CPU sees it. GPUs reach the host's pinned memory, too.
ptx::Stretch stretch_of(std::uint64_t address);
// The block that has the whole range.
std::optional<World::Block> block_of(std::uint64_t address, std::size_t size_bytes);
// The bytes in use on a device; under the mutex.
std::size_t used_on(int device);
bool has_room(int device, std::size_t size_bytes);
int add_block(std::uint64_t* address, const World::Block& block, void* memory);
void free_block(std::uint64_t address);

}  // namespace stand_in

extern "C" int cuStreamWaitEvent(void* stream, void* event, unsigned flags);

// Counts the call and returns the injected error code.
#define CALL(name) \
  if (const int ordered = stand_in_count(name); ordered != kSuccess) return ordered
