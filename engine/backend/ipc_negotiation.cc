#include "backend/ipc_negotiation.h"

#include <array>
#include <cstring>
#include <span>

#include "backend/trial_numbers.h"
#include "kernels/reduce.h"

namespace hvd {

namespace {

constexpr std::size_t kCount = 61;  // numbers of a dtype; less than the threads of a block
constexpr std::size_t kArea = 512;  // bytes for them
constexpr std::size_t kNumbers = kDtypeCount * kArea;
constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// The result shows whether each of these factors is applied in the right place.
KernelCall call_of(int dtype, ReduceOp op) {
  KernelCall call{.dtype = static_cast<Dtype>(dtype), .op = op};
  if (is_float(call.dtype)) {
    call.prescale = 0.7;
    call.postscale = 1.0 / 3.0;
  }
  return call;
}

std::size_t result_bytes(int size) {
  return static_cast<std::size_t>(size) * kNumbers + kOps.size() * kNumbers;
}

}  // namespace

std::vector<std::byte> trial_numbers(int rank) {
  std::vector<std::byte> bytes(kNumbers);
  for (std::size_t dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t which = (i + i / 4 * static_cast<std::size_t>(rank + 1) + dtype) % 4;
      write_trial_number(bytes.data() + dtype * kArea, static_cast<Dtype>(dtype), i, which);
    }
  }
  return bytes;
}

std::vector<std::byte> trial_results(int size) {
  std::vector<std::byte> results;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<std::byte> numbers = trial_numbers(rank);
    results.insert(results.end(), numbers.begin(), numbers.end());
  }
  results.resize(result_bytes(size));
  std::byte* to = results.data() + static_cast<std::size_t>(size) * kNumbers;
  for (const ReduceOp op : kOps) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype, to += kArea) {
      std::vector<const std::byte*> sources;
      for (int rank = 0; rank < size; ++rank) {
        sources.push_back(results.data() + static_cast<std::size_t>(rank) * kNumbers +
                          static_cast<std::size_t>(dtype) * kArea);
      }
      const KernelCall call = call_of(dtype, op);
      const ReduceSpec spec{
          .dtype = call.dtype, .op = op, .prescale = call.prescale, .postscale = call.postscale};
      reduce(spec, sources, to, nullptr, kCount);
    }
  }
  return results;
}

IpcTrial::IpcTrial(Gpu& gpu, int device, Place place)
    : gpu_(gpu),
      place_(place),
      stream_(gpu.driver(), device),
      pinned_(gpu.driver(), device, result_bytes(place.size)),
      block_(gpu.memory().allocate(device, result_bytes(place.size))) {}

void IpcTrial::show(const IpcMemory& own) {
  const std::vector<std::byte> numbers = trial_numbers(place_.rank);
  std::memcpy(pinned_.data(), numbers.data(), numbers.size());
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, stream_.device());
  driver.copy_in(own.address(), pinned_.data(), numbers.size(), stream_.get());
  event_ = stream_.mark();
}

void IpcTrial::take(const IpcPeers& peers) {
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, stream_.device());
  const std::size_t bytes = result_bytes(place_.size);
  driver.clear(block_->address(), bytes, stream_.get());
  cuda::Address to = block_->address();
  for (const cuda::Address from : peers.addresses) {
    driver.copy(to, from, kNumbers, stream_.get());
    to += kNumbers;
  }
  for (const ReduceOp op : kOps) {
    std::vector<cuda::Address> sources = peers.addresses;
    for (int dtype = 0; dtype < kDtypeCount; ++dtype, to += kArea) {
      peers.kernels->launch(call_of(dtype, op), sources, to, kCount, stream_.get());
      for (cuda::Address& source : sources) source += kArea;
    }
  }
  driver.copy_out(pinned_.data(), block_->address(), bytes, stream_.get());
  event_ = stream_.mark();
  block_->last_use = event_;
}

bool IpcTrial::is_right() const {
  const std::vector<std::byte> expected = trial_results(place_.size);
  return std::memcmp(pinned_.data(), expected.data(), expected.size()) == 0;
}

// Before the end the GPU may be at work with the memory.
IpcNegotiation::~IpcNegotiation() {
  if (peers_.own != nullptr) IpcMemories::keep(std::make_shared<IpcPeers>(std::move(peers_)));
}

void IpcNegotiation::begin(int device, std::size_t pass_bytes) {
  device_ = device;
  attempt([&] {
    peers_.own = group_.gpu.ipc_memories().take(device, 2 * pass_bytes);
    trial_ = std::make_unique<IpcTrial>(group_.gpu, device, group_.place);
    trial_->show(*peers_.own);
  });
  when([this] { return trial_->is_done(); }, [this] { send_handle(); });
}

void IpcNegotiation::send_handle() {
  cuda::IpcHandle handle{};
  if (problem_.empty()) handle = peers_.own->handle();
  agree([this] { obstacle_ ? end() : open_all(); }, std::as_bytes(std::span(&handle, 1)));
}

void IpcNegotiation::open_all() {
  attempt([&] {
    for (int rank = 0; rank < group_.place.size; ++rank) {
      const auto handle = read_as<cuda::IpcHandle>(agreement_.added_by(rank));
      const bool is_own = rank == group_.place.rank;
      peers_.others.push_back(
          is_own ? nullptr : std::make_unique<PeerMemory>(group_.gpu.driver(), device_, handle));
      peers_.addresses.push_back(is_own ? peers_.own->address() : peers_.others.back()->address());
    }
    peers_.kernels = &group_.gpu.reduction_kernels(device_);
    trial_->take(peers_);
  });
  when([this] { return trial_->is_done(); }, [this] { judge(); });
}

void IpcNegotiation::judge() {
  if (problem_.empty() && !trial_->is_right()) {
    problem_ = "this GPU reads wrong data from the memory of other processes";
  }
  agree([this] { end(); });
}

// After a failure the GPU may still be at work with the memory.
void IpcNegotiation::end() {
  trial_.reset();
  if (!obstacle_) return;
  IpcPeers unused = std::move(peers_);
  if (has_failed_) IpcMemories::keep(std::make_shared<IpcPeers>(std::move(unused)));
}

}  // namespace hvd
