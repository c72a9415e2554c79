#include "backend/nccl_adasum.h"

#include <algorithm>
#include <utility>

#include "collective/shares.h"

namespace hvd {

namespace {

std::byte* pointer_to(cuda::Address address) { return reinterpret_cast<std::byte*>(address); }

std::size_t bytes_of(RowRange share, Dtype dtype) {
  return static_cast<std::size_t>(share.count) * size_of(dtype);
}

std::size_t offset_of(RowRange share, Dtype dtype) {
  return static_cast<std::size_t>(share.begin) * size_of(dtype);
}

}  // namespace

NcclAdasum::NcclAdasum(Gpu& gpu, Place place, std::unique_ptr<AdasumKernels> kernels)
    : gpu_(gpu), place_(place), kernels_(std::move(kernels)) {}

void NcclAdasum::begin(std::span<const NcclCall> calls, DeviceChannel& channel) {
  channel_ = &channel;
  tensors_.clear();
  for (const NcclCall& call : calls) add(call);
  std::size_t scratch_bytes = 0;
  for (const Tensor& tensor : tensors_) {
    scratch_bytes = std::max(scratch_bytes, kernels_->scratch_bytes(tensor.parts.count));
  }
  scratch_ = allocate(scratch_bytes);
  grams_ = allocate(tensors_.size() * kernels_->gram_entries() * sizeof(double));
  weights_ = allocate(tensors_.size() * kernels_->weights() * sizeof(double));
}

void NcclAdasum::add(const NcclCall& call) {
  Tensor tensor{.call = &call, .own = {}, .parts = {.dtype = call.work->request->dtype}};
  tensor.own = share_of(tensor, place_.rank);
  tensor.parts.count = static_cast<std::size_t>(tensor.own.count);
  tensor.parts.stride_bytes = align_up(bytes_of(tensor.own, tensor.parts.dtype));
  tensor.parts.from = allocate(tensor.parts.stride_bytes * static_cast<std::size_t>(place_.size));
  tensors_.push_back(tensor);
}

cuda::Address NcclAdasum::allocate(std::size_t size_bytes) {
  blocks_.push_back(gpu_.memory().allocate(channel_->stream.device(), size_bytes));
  return blocks_.back()->address();
}

RowRange NcclAdasum::share_of(const Tensor& tensor, int rank) const {
  const auto count = static_cast<std::int64_t>(tensor.call->work->request->element_count());
  return reducescatter_rows(count, rank, place_.size);
}

void NcclAdasum::start(int step) {
  if (step == 0) return exchange_shares();
  if (step == 1) return add_up_dots();
  share_results();
}

void NcclAdasum::end(const CudaEventPtr& done) {
  for (const DeviceBlockPtr& block : blocks_) block->last_use = done;
  blocks_.clear();
}

void NcclAdasum::exchange_shares() {
  const NcclCommunicator& nccl = *channel_->communicator;
  NcclGroup group(nccl);
  for (const Tensor& tensor : tensors_) {
    const Dtype dtype = tensor.parts.dtype;
    cuda::Address to = tensor.parts.from;
    for (int peer = 0; peer < place_.size; ++peer, to += tensor.parts.stride_bytes) {
      const RowRange theirs = share_of(tensor, peer);
      nccl.send(tensor.call->in + offset_of(theirs, dtype), bytes_of(theirs, dtype), peer,
                stream());
      nccl.receive(pointer_to(to), bytes_of(tensor.own, dtype), peer, stream());
    }
  }
  group.close();
}

void NcclAdasum::add_up_dots() {
  const std::size_t entries = kernels_->gram_entries();
  cuda::Address gram = grams_;
  for (const Tensor& tensor : tensors_) {
    kernels_->dots(tensor.parts, gram, scratch_, stream());
    gram += entries * sizeof(double);
  }
  const NcclCommunicator& nccl = *channel_->communicator;
  NcclGroup group(nccl);
  nccl.start(stream(), nccl.functions().all_reduce, pointer_to(grams_), pointer_to(grams_),
             tensors_.size() * entries, nccl::DataType::kFloat64, nccl::RedOp::kSum);
  group.close();
}

void NcclAdasum::share_results() {
  sum_own_shares();
  const NcclCommunicator& nccl = *channel_->communicator;
  NcclGroup group(nccl);
  for (const Tensor& tensor : tensors_) {
    const Dtype dtype = tensor.parts.dtype;
    std::byte* const out = tensor.call->out;
    for (int peer = 0; peer < place_.size; ++peer) {
      if (peer == place_.rank) continue;
      const RowRange theirs = share_of(tensor, peer);
      nccl.send(out + offset_of(tensor.own, dtype), bytes_of(tensor.own, dtype), peer, stream());
      nccl.receive(out + offset_of(theirs, dtype), bytes_of(theirs, dtype), peer, stream());
    }
  }
  group.close();
}

void NcclAdasum::sum_own_shares() {
  kernels_->find_weights(grams_, tensors_.size(), weights_, stream());
  cuda::Address weights = weights_;
  for (const Tensor& tensor : tensors_) {
    const Request& request = *tensor.call->work->request;
    const std::byte* const to = tensor.call->out + offset_of(tensor.own, request.dtype);
    kernels_->sum(tensor.parts, weights, request.prescale * request.postscale, cuda::address_of(to),
                  stream());
    weights += kernels_->weights() * sizeof(double);
  }
}

}  // namespace hvd
