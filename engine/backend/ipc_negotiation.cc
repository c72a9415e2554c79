#include "backend/ipc_negotiation.h"

#include <span>

namespace hvd {

IpcNegotiation::IpcNegotiation(Gpu& gpu, Backend& host, Place place, std::vector<std::string> names)
    : gpu_(gpu), host_(host), place_(place), names_(std::move(names)) {}

// In the middle of it the GPU may be at work with what is open.
IpcNegotiation::~IpcNegotiation() {
  if (step_ != Step::kDone) {
    IpcMemories::keep(std::make_shared<IpcPeers>(std::move(peers_)));
  }
}

void IpcNegotiation::begin(int device, std::size_t pass_bytes) {
  device_ = device;
  step_ = Step::kShowing;
  run([&] {
    peers_.own = gpu_.ipc_memories().take(device, 2 * pass_bytes);
    trial_ = std::make_unique<IpcTrial>(gpu_, device, place_);
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
    if (!host_.advance(blocked)) return false;
    obstacle_ = agreement_.obstacle(names_);
    if (obstacle_ || step_ == Step::kAgreement) {
      end();
    } else {
      open_all();
    }
  }
  return true;
}

// Or has a problem, which is the next step as well.
bool IpcNegotiation::is_gpu_done() {
  bool is_done = false;
  run([&] { is_done = !problem_.empty() || trial_->is_done(); });
  return is_done || !problem_.empty();
}

void IpcNegotiation::send_handle() {
  cuda::IpcHandle handle{};
  if (problem_.empty()) handle = peers_.own->handle();
  agreement_.send(host_, problem_, place_.size, std::as_bytes(std::span(&handle, 1)));
  step_ = Step::kHandles;
}

void IpcNegotiation::open_all() {
  step_ = Step::kTrying;
  run([&] {
    for (int rank = 0; rank < place_.size; ++rank) {
      const auto handle = read_as<cuda::IpcHandle>(agreement_.shown_by(rank));
      const bool is_own = rank == place_.rank;
      peers_.others.push_back(
          is_own ? nullptr : std::make_unique<PeerMemory>(gpu_.driver(), device_, handle));
      peers_.addresses.push_back(is_own ? peers_.own->address() : peers_.others.back()->address());
    }
    peers_.kernels = std::make_unique<ReductionKernels>(gpu_.driver(), device_);
    trial_->take(peers_);
  });
}

void IpcNegotiation::send_status() {
  if (problem_.empty() && !trial_->is_right()) {
    problem_ = "this GPU does not read what other processes have written";
  }
  agreement_.send(host_, problem_, place_.size);
  step_ = Step::kAgreement;
}

// After a failure nobody knows what the GPU still does with what is open.
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
