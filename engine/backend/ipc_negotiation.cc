#include "backend/ipc_negotiation.h"

#include <span>

namespace hvd {

// Before the end the GPU may be at work with the memory.
IpcNegotiation::~IpcNegotiation() {
  if (step_ != Step::kDone) {
    IpcMemories::keep(std::make_shared<IpcPeers>(std::move(peers_)));
  }
}

void IpcNegotiation::begin(int device, std::size_t pass_bytes) {
  device_ = device;
  step_ = Step::kShowing;
  run([&] {
    peers_.own = group_.gpu.ipc_memories().take(device, 2 * pass_bytes);
    trial_ = std::make_unique<IpcTrial>(group_.gpu, device, group_.place);
    trial_->show(*peers_.own);
  });
}

void IpcNegotiation::run(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    problem_ = error.what();
    has_failed_ = true;
  }
}

bool IpcNegotiation::advance(PeerWait& blocked) {
  while (step_ != Step::kDone) {
    if (step_ == Step::kShowing || step_ == Step::kTrying) {
      if (!is_gpu_done()) {
        blocked = {.is_polled = true};
        return false;
      }
      if (step_ == Step::kShowing) {
        send_handle();
      } else {
        send_status();
      }
      continue;
    }
    if (!group_.host.advance(blocked)) return false;
    obstacle_ = agreement_.obstacle(group_.names);
    if (obstacle_ || step_ == Step::kAgreement) {
      end();
    } else {
      open_all();
    }
  }
  return true;
}

// True on failure, too: the next step is the same.
bool IpcNegotiation::is_gpu_done() {
  bool is_done = false;
  run([&] { is_done = !problem_.empty() || trial_->is_done(); });
  return is_done || !problem_.empty();
}

void IpcNegotiation::send_handle() {
  cuda::IpcHandle handle{};
  if (problem_.empty()) handle = peers_.own->handle();
  agreement_.send(group_.host, problem_, group_.place.size, std::as_bytes(std::span(&handle, 1)));
  step_ = Step::kHandles;
}

void IpcNegotiation::open_all() {
  step_ = Step::kTrying;
  run([&] {
    for (int rank = 0; rank < group_.place.size; ++rank) {
      const auto handle = read_as<cuda::IpcHandle>(agreement_.added_by(rank));
      const bool is_own = rank == group_.place.rank;
      peers_.others.push_back(
          is_own ? nullptr : std::make_unique<PeerMemory>(group_.gpu.driver(), device_, handle));
      peers_.addresses.push_back(is_own ? peers_.own->address() : peers_.others.back()->address());
    }
    peers_.kernels = std::make_unique<ReductionKernels>(group_.gpu.driver(), device_);
    trial_->take(peers_);
  });
}

void IpcNegotiation::send_status() {
  if (problem_.empty() && !trial_->is_right()) {
    problem_ = "this GPU does not read what other processes have written";
  }
  agreement_.send(group_.host, problem_, group_.place.size);
  step_ = Step::kAgreement;
}

// After a failure the GPU may still be at work with the memory.
void IpcNegotiation::end() {
  step_ = Step::kDone;
  trial_.reset();
  if (!obstacle_) return;
  IpcPeers unused = std::move(peers_);
  if (has_failed_) {
    IpcMemories::keep(std::make_shared<IpcPeers>(std::move(unused)));
  }
}

}  // namespace hvd
