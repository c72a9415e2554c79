#include "backend/device_ipc.h"

#include <algorithm>
#include <utility>

#include "collective/shares.h"

namespace hvd {

namespace {

// The part of [at, at + size_bytes) that is in the pass.
Range part_in(Range pass, std::size_t at, std::size_t size_bytes) {
  const std::size_t first = std::max(pass.begin, at);
  return {first, std::max(first, std::min(pass.end, at + size_bytes))};
}

}  // namespace

DeviceIpc::DeviceIpc(Gpu& gpu, Backend& host, Place place, IpcPeers peers)
    : gpu_(gpu),
      host_(host),
      place_(place),
      peers_(std::make_shared<IpcPeers>(std::move(peers))),
      device_(peers_->own->device()),
      half_bytes_(peers_->own->size_bytes() / 2),
      in_(gpu_.driver(), device_),
      out_(gpu_.driver(), device_) {}

// Memory that the GPU may still use stays open: the process is about to end, or its GPU is stuck.
DeviceIpc::~DeviceIpc() {
  close();
  if (peers_ != nullptr) IpcMemories::keep(std::move(peers_));
}

void DeviceIpc::close() noexcept {
  try {
    if (is_idle()) peers_.reset();
  } catch (const Error&) {  // the GPU has failed, and may still be at work
  }
}

// After a failure between a launch and its event nothing tells when the GPU has done with it.
bool DeviceIpc::is_idle() const {
  return !has_unmarked_work_ && (filled_ == nullptr || filled_->is_reached()) &&
         (taken_ == nullptr || taken_->is_reached());
}

void DeviceIpc::begin(std::span<const Work> works) {
  plan_ = plan_ipc(works, place_);
  passes_before_ += pass_count_;
  pass_ = 0;
  pass_count_ = block_count(plan_.longest_bytes, half_bytes_);
  const CurrentDevice current(gpu_.driver(), device_);
  for (const Work& work : works) {
    if (work.dependency == nullptr) continue;
    work.dependency->ready(work.device).hold_back(in_.get());
    work.dependency->ready(work.device).hold_back(out_.get());
  }
  if (pass_count_ == 0) {
    taken_ = out_.mark();
  } else {
    fill();
  }
}

bool DeviceIpc::advance(PeerWait& blocked) {
  while (pass_ < pass_count_) {
    if (!is_in_barrier_) {
      if (!is_idle()) {
        blocked = {.is_polled = true};
        return false;
      }
      host_.begin_barrier();
      is_in_barrier_ = true;
    }
    if (!host_.advance(blocked)) return false;
    is_in_barrier_ = false;
    take();
    if (++pass_ < pass_count_) fill();
  }
  return true;
}

// The halves alternate over all buckets.
DeviceIpc::Pass DeviceIpc::pass() const {
  return {.range = block_of(pass_, half_bytes_, plan_.longest_bytes),
          .half_at = (passes_before_ + pass_) % 2 * half_bytes_};
}

void DeviceIpc::fill() {
  has_unmarked_work_ = true;
  const Pass now = pass();
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, device_);
  for (const IpcGift& gift : plan_.gifts) {
    const Range part = part_in(now.range, gift.at, gift.size_bytes);
    const std::size_t bytes = part.end - part.begin;
    if (bytes == 0) continue;
    const cuda::Address to = peers_->own->address() + now.half_at + (part.begin - now.range.begin);
    if (gift.from != nullptr) {
      driver.copy_across(to, device_, cuda::address_of(gift.from + (part.begin - gift.at)),
                         gift.work->device, bytes, in_.get());
    } else {
      driver.clear(to, bytes, in_.get());
    }
  }
  filled_ = in_.mark();
  has_unmarked_work_ = false;
}

void DeviceIpc::take() {
  has_unmarked_work_ = true;
  const Pass now = pass();
  const CurrentDevice current(gpu_.driver(), device_);
  for (const IpcTaking& taking : plan_.takings) {
    const Range part = part_in(now.range, taking.at, taking.size_bytes);
    if (part.begin == part.end) continue;
    const std::size_t offset = now.half_at + (part.begin - now.range.begin);
    if (taking.giver == IpcTaking::kAll) {
      reduce(taking, offset, part);
    } else {
      gpu_.driver().copy_across(cuda::address_of(taking.to + (part.begin - taking.at)),
                                taking.work->device,
                                peers_->addresses[static_cast<std::size_t>(taking.giver)] + offset,
                                device_, part.end - part.begin, out_.get());
    }
  }
  taken_ = out_.mark();
  has_unmarked_work_ = false;
  for (const DeviceBlockPtr& block : blocks_) block->last_use = taken_;
  blocks_.clear();
}

// Kernels run on the GPU with the ranks' memory. A result for another GPU is copied there.
void DeviceIpc::reduce(const IpcTaking& taking, std::size_t offset, Range part) {
  const ReduceSpec spec = spec_of(*taking.work->request, place_.size);
  const bool is_average = spec.op == ReduceOp::kAverage;
  const KernelCall call{.dtype = spec.dtype,
                        .op = is_average ? ReduceOp::kSum : spec.op,
                        .prescale = spec.prescale,
                        .postscale = is_average ? spec.postscale / spec.divisor : spec.postscale};
  std::vector<cuda::Address> sources = peers_->addresses;
  for (cuda::Address& source : sources) source += offset;
  const std::size_t bytes = part.end - part.begin;
  const cuda::Address to = cuda::address_of(taking.to + (part.begin - taking.at));
  const bool is_near = taking.work->device == device_;
  if (!is_near) blocks_.push_back(gpu_.memory().allocate(device_, bytes));
  const cuda::Address result = is_near ? to : blocks_.back()->address();
  peers_->kernels->launch(call, sources, result, bytes / size_of(spec.dtype), out_.get());
  if (!is_near) {
    gpu_.driver().copy_across(to, taking.work->device, result, device_, bytes, out_.get());
  }
}

}  // namespace hvd
