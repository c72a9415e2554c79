#include "backend/device_channel.h"

#include <exception>
#include <thread>

#include "core/quiet_thread.h"

namespace hvd {

namespace {

template <typename Use>
void for_each_communicator(const DeviceChannels& channels, Use&& use) {
  for (const auto& channel : channels) {
    for (const auto* each : {&channel->communicator, &channel->local, &channel->cross}) {
      if (*each != nullptr && (*each)->is_open()) use(**each);
    }
  }
}

// For work in a stream behind calls that were aborted, such as a kernel on their results.
constexpr Nanoseconds kDrainLimit = std::chrono::seconds(1);

void drain(const DeviceChannels& channels) noexcept {
  const std::int64_t deadline_ns = now_ns() + kDrainLimit.count();
  try {
    for (const auto& channel : channels) {
      const CurrentDevice current(channel->stream.driver(), channel->stream.device());
      const CudaEventPtr end = channel->stream.mark();
      while (!end->is_reached() && now_ns() < deadline_ns)
        std::this_thread::sleep_for(kLookInterval);
    }
  } catch (const Error&) {  // the GPU has failed, so no work is left there
  }
}

}  // namespace

void check_channels(const DeviceChannels& channels) {
  for_each_communicator(channels,
                        [](const NcclCommunicator& each) { static_cast<void>(each.is_busy()); });
}

void leave_channels(const DeviceChannels& channels, Nanoseconds limit) noexcept {
  for_each_communicator(channels, [limit](NcclCommunicator& each) { each.leave(limit); });
}

// Aborts all communicators at once. When NCCL aborts one, it frees memory of the GPU, which waits
// for all work there. That may be a call on another communicator, which only its own abort ends.
void abort_channels(const DeviceChannels& channels) noexcept {
  std::vector<std::thread> threads;
  for_each_communicator(channels, [&](NcclCommunicator& each) {
    try {
      threads.push_back(quiet_thread([&each] { each.abort(); }));
    } catch (const std::exception&) {
      each.abort();
    }
  });
  for (std::thread& thread : threads) thread.join();
  if (!threads.empty()) drain(channels);
}

}  // namespace hvd
