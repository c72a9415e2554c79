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

}  // namespace

void check_channels(const DeviceChannels& channels) {
  for_each_communicator(channels,
                        [](const NcclCommunicator& each) { static_cast<void>(each.is_busy()); });
}

void leave_channels(const DeviceChannels& channels, Nanoseconds limit) noexcept {
  for_each_communicator(channels, [limit](NcclCommunicator& each) { each.leave(limit); });
}

// All at once: NCCL frees memory of the GPU when it aborts, and that waits for whatever runs there,
// such as a call on another communicator that only its own abort ends.
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
}

}  // namespace hvd
