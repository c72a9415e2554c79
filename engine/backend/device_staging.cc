#include "backend/device_staging.h"

#include <algorithm>
#include <utility>

#include "collective/shares.h"

namespace hvd {

namespace {

// Reserves a place at the end of the pass.
std::size_t place_in(StagedPass& pass, std::size_t size_bytes) {
  const std::size_t at = pass.size_bytes;
  pass.size_bytes += align_up(size_bytes);
  return at;
}

// A piece of a tensor that has one shape on all ranks.
StagedPart piece_of(const Work& work, Place place, std::size_t begin, std::size_t size_bytes) {
  StagedPart part{.work = &work, .request = *work.request};
  part.request.dims_count = 1;
  part.request.dims[0] = static_cast<std::int64_t>(size_bytes / size_of(part.request.dtype));
  const bool has_root = collective_of(part.request.kind).has_root;
  const bool is_given = !has_root || work.root == place.rank;
  if (is_given) part.from = at_offset(work.in, begin);
  part.from_bytes = part.from == nullptr ? 0 : size_bytes;
  const bool is_there = has_root && is_given && work.in == work.out;
  if (!is_there) part.to = at_offset(work.out, begin);
  part.to_bytes = part.to == nullptr ? 0 : size_bytes;
  return part;
}

StagedPart whole_of(const Work& work, Place place) {
  StagedPart part{.work = &work, .request = *work.request, .from = work.in};
  part.from_bytes = work.in == nullptr ? 0 : given_bytes(work, place);
  part.to = work.out;
  part.to_bytes = work.out == nullptr ? 0 : taken_bytes(work, place);
  return part;
}

// `is_cut`: passes may cut tensors. Otherwise a pass has whole tensors, and a large tensor has its
// own pass.
std::vector<StagedPass> divided(std::span<const Work> works, Place place, std::size_t pass_bytes,
                                bool is_cut) {
  std::vector<StagedPass> passes;
  for (const Work& work : works) {
    const std::size_t size_bytes = work.request->size_bytes();
    for (std::size_t begin = 0; begin < size_bytes;) {
      const std::size_t needed = is_cut ? 1 : size_bytes;
      if (passes.empty() || passes.back().size_bytes + needed > pass_bytes) passes.emplace_back();
      StagedPass& pass = passes.back();
      const std::size_t bytes =
          is_cut ? std::min(size_bytes - begin, pass_bytes - pass.size_bytes) : size_bytes;
      StagedPart part = piece_of(work, place, begin, bytes);
      part.in_at = part.out_at = place_in(pass, bytes);
      pass.parts.push_back(part);
      begin += bytes;
    }
  }
  return passes;
}

}  // namespace

std::vector<StagedPass> plan_passes(Kind kind, std::span<const Work> works, Place place,
                                    std::size_t pass_bytes) {
  if (collective_of(kind).keeps_shape())
    return divided(works, place, pass_bytes, !is_adasum(works));
  StagedPass pass;
  for (const Work& work : works) {
    StagedPart part = whole_of(work, place);
    part.in_at = place_in(pass, part.from_bytes);
    part.out_at = place_in(pass, part.to_bytes);
    pass.parts.push_back(part);
  }
  return {std::move(pass)};
}

DeviceStaging::DeviceStaging(Gpu& gpu, Backend& host, Place place)
    : gpu_(gpu), host_(host), place_(place) {}

void DeviceStaging::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut,
                          int device) {
  const CudaDriver& driver = gpu_.driver();
  if (in_ == nullptr || in_->device() != device) {
    in_ = std::make_unique<CudaStream>(driver, device);
    out_ = std::make_unique<CudaStream>(driver, device);
  }
  kind_ = kind;
  cut_ = cut;
  passes_ = plan_passes(kind, works, place_, kPassBytes);
  filled_ = 0;
  drained_ = 0;
  const CurrentDevice current(driver, device);
  for (const Work& work : works) {
    if (work.dependency == nullptr) continue;
    work.dependency->ready(work.device).hold_back(in_->get());
    work.dependency->ready(work.device).hold_back(out_->get());
  }
}

bool DeviceStaging::advance(PeerWait& blocked) {
  for (; drained_ < passes_.size(); ++drained_) {
    StagedPass& pass = passes_[drained_];
    if (!is_running_) {
      while (filled_ < std::min(drained_ + 2, passes_.size()) && fill(filled_)) ++filled_;
      if (filled_ == drained_ || !slot_of(drained_).filled->is_reached()) {
        blocked = {.is_polled = true};
        return false;
      }
      run(pass);
    }
    if (!host_.advance(blocked)) return false;
    is_running_ = false;
    drain(pass);
  }
  done_ = out_->mark();
  return true;
}

// False while the slot is too small and its last pass is still being copied out.
bool DeviceStaging::fill(std::size_t index) {
  const StagedPass& pass = passes_[index];
  Slot& slot = slot_of(index);
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, in_->device());
  if (slot.memory == nullptr || slot.memory->size_bytes() < pass.size_bytes) {
    if (slot.drained != nullptr && !slot.drained->is_reached()) return false;
    slot.memory.reset();
    slot.memory = std::make_unique<PinnedMemory>(driver, in_->device(),
                                                 std::max(pass.size_bytes, kPassBytes));
  }
  if (slot.drained != nullptr) slot.drained->hold_back(in_->get());
  for (const StagedPart& part : pass.parts) {
    if (part.from_bytes == 0) continue;
    copy_in_order(*in_, part.work->device, [&](cuda::Stream stream) {
      driver.copy_out(slot.memory->data() + part.in_at, cuda::address_of(part.from),
                      part.from_bytes, stream);
    });
  }
  slot.filled = in_->mark();
  return true;
}

// A GPU does not reach every memory of another one. Its own stream makes the copy, between the work
// that is in `stream` and what comes there later.
template <typename Copy>
void DeviceStaging::copy_in_order(CudaStream& stream, int device, Copy&& copy) {
  if (device == stream.device()) return copy(stream.get());
  const CudaDriver& driver = gpu_.driver();
  const CudaStream& other = others_.try_emplace(device, driver, device).first->second;
  const CudaEventPtr before = stream.mark();
  CudaEventPtr after;
  {
    const CurrentDevice current(driver, device);
    before->hold_back(other.get());
    copy(other.get());
    after = other.mark();
  }
  after->hold_back(stream.get());
}

void DeviceStaging::run(StagedPass& pass) {
  std::byte* const memory = slot_of(drained_).memory->data();
  works_.clear();
  for (const StagedPart& part : pass.parts) {
    works_.push_back(*part.work);
    Work& work = works_.back();
    work.request = &part.request;
    // In a broadcast every rank has an input, as with tensors of the host.
    const bool has_in = part.work->in != nullptr;
    work.in = has_in ? memory + part.in_at : nullptr;
    work.out = part.work->out != nullptr ? memory + part.out_at : nullptr;
  }
  host_.begin(kind_, works_, cut_);
  is_running_ = true;
}

void DeviceStaging::drain(const StagedPass& pass) {
  Slot& slot = slot_of(drained_);
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, out_->device());
  for (const StagedPart& part : pass.parts) {
    if (part.to_bytes == 0) continue;
    copy_in_order(*out_, part.work->device, [&](cuda::Stream stream) {
      driver.copy_in(cuda::address_of(part.to), slot.memory->data() + part.out_at, part.to_bytes,
                     stream);
    });
  }
  slot.drained = out_->mark();
}

}  // namespace hvd
