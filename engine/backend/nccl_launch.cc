#include "backend/nccl_launch.h"

#include <bit>

namespace hvd {

void NcclLaunch::begin(std::span<const Work> works, DeviceChannel& channel,
                       const NcclLevels* levels) {
  levels_ = levels;
  adasum_ = nullptr;
  const CurrentDevice current(gpu_.driver(), channel.stream.device());
  prepare(works, channel);
  plan_reductions();
  move(reductions_.before);
  start_step();
}

void NcclLaunch::begin_adasum(std::span<const Work> works, DeviceChannel& channel,
                              NcclAdasum& adasum) {
  levels_ = nullptr;
  adasum_ = &adasum;
  const CurrentDevice current(gpu_.driver(), channel.stream.device());
  prepare(works, channel);
  adasum.begin(calls_, channel);
  start_step();
}

void NcclLaunch::prepare(std::span<const Work> works, DeviceChannel& channel) {
  channel_ = &channel;
  step_ = 0;
  done_.reset();
  calls_.clear();
  reductions_ = {};
  for (const Work& work : works) add_call(work);
}

void NcclLaunch::plan_reductions() {
  if (kind() == Kind::kAllreduce) {
    reductions_ = plan_allreduces(calls_, place_.size, packed_memory(packed_bytes(calls_)));
  } else if (kind() == Kind::kReducescatter) {
    for (NcclCall& call : calls_) scale_parts(call);
  }
}

// The channel's: in its stream one bucket follows the other.
std::byte* NcclLaunch::packed_memory(std::size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  DeviceBlockPtr& block = channel_->packed;
  if (block == nullptr || block->capacity_bytes < size_bytes) {
    block = gpu_.memory().allocate(channel_->stream.device(), std::bit_ceil(size_bytes));
  }
  block->last_use.reset();  // not known before the bucket is in the stream
  return block->data;
}

// Plans the factors of a reducescatter. They must not change the tensor.
void NcclLaunch::scale_parts(NcclCall& call) {
  const Request& request = *call.work->request;
  if (request.prescale != 1.0) {
    std::byte* const scaled = scratch(request.size_bytes());
    reductions_.before.add(request.dtype, request.prescale, call.in, scaled,
                           request.element_count());
    call.in = scaled;
  }
  const double factor = postscale_of(request, place_.size);
  const std::size_t count = taken_bytes(*call.work, place_) / size_of(request.dtype);
  if (factor != 1.0) reductions_.after.add(request.dtype, factor, call.out, call.out, count);
}

void NcclLaunch::move(const ScaledMoves& moves) {
  for (const ScaledMove& move : moves.list()) {
    gpu_.move_kernels(channel_->stream.device())
        .launch(move.dtype, move.factor, move.pieces, stream());
  }
}

int NcclLaunch::step_count() const {
  if (adasum_ != nullptr) return NcclAdasum::kSteps;
  return levels_ == nullptr ? 1 : NcclLevels::step_count(kind());
}

NcclCommunicator& NcclLaunch::communicator() const {
  if (levels_ == nullptr) return *channel_->communicator;
  return NcclLevels::communicator(kind(), step_, *channel_);
}

void NcclLaunch::start_step() {
  if (adasum_ != nullptr) return adasum_->start(step_);
  NcclGroup group(communicator());
  if (kind() == Kind::kAllreduce) {
    for (const NcclReduction& reduction : reductions_.calls) start_allreduce(reduction);
  } else {
    for (const NcclCall& call : calls_) start(call);
  }
  group.close();
}

void NcclLaunch::add_call(const Work& work) {
  const std::size_t given = given_bytes(work, place_);
  const std::size_t taken = taken_bytes(work, place_);
  const bool is_near = work.device == channel_->stream.device();
  const CudaDriver& driver = gpu_.driver();
  if (work.dependency != nullptr) work.dependency->ready(work.device).hold_back(stream());
  NcclCall call{.work = &work, .in = work.in, .out = work.out};
  if (work.in == nullptr || (!is_near && given != 0)) {
    std::byte* const in = scratch(given);
    if (work.in != nullptr) {
      driver.copy_across(cuda::address_of(in), channel_->stream.device(), cuda::address_of(work.in),
                         work.device, given, stream());
    } else {
      driver.clear(cuda::address_of(in), given, stream());
    }
    call.in = in;
  }
  if (work.out == nullptr || !is_near) call.out = scratch(taken);
  calls_.push_back(call);
}

std::byte* NcclLaunch::scratch(std::size_t size_bytes) {
  blocks_.push_back(gpu_.memory().allocate(channel_->stream.device(), size_bytes));
  return blocks_.back()->data;
}

// A call is in the stream only after NCCL has taken it. So each step waits for the one before it.
bool NcclLaunch::advance() {
  const CurrentDevice current(gpu_.driver(), channel_->stream.device());
  while (!communicator().is_busy()) {
    if (step_ + 1 == step_count()) {
      end();
      return true;
    }
    ++step_;
    start_step();
  }
  return false;
}

void NcclLaunch::end() {
  move(reductions_.after);
  for (const NcclCall& call : calls_) {
    if (call.work->out == nullptr || call.work->out == call.out) continue;
    gpu_.driver().copy_across(cuda::address_of(call.work->out), call.work->device,
                              cuda::address_of(call.out), channel_->stream.device(),
                              taken_bytes(*call.work, place_), stream());
  }
  done_ = channel_->stream.mark();
  for (const DeviceBlockPtr& block : blocks_) block->last_use = done_;
  blocks_.clear();
  if (channel_->packed != nullptr) channel_->packed->last_use = done_;
  if (adasum_ != nullptr) adasum_->end(done_);
}

void NcclLaunch::start(const NcclCall& call) {
  const Work& work = *call.work;
  switch (work.request->kind) {
    case Kind::kBroadcast:
      return channel_->communicator->broadcast(call.in, call.out, work.request->size_bytes(),
                                               work.root, stream());
    case Kind::kAllgather:
      return start_allgather(call);
    case Kind::kReducescatter:
      return start_reducescatter(call);
    default:
      return start_alltoall(call);
  }
}

void NcclLaunch::start_allreduce(const NcclReduction& reduction) {
  if (levels_ != nullptr) return levels_->start_allreduce(step_, reduction, *channel_);
  const NcclCommunicator& nccl = *channel_->communicator;
  nccl.start(stream(), nccl.functions().all_reduce, reduction.in, reduction.out, reduction.count,
             nccl_type_of(reduction.dtype), reduction.op);
}

// One call if all ranks give the same number of rows; else every rank is the root of a broadcast.
void NcclLaunch::start_allgather(const NcclCall& call) {
  if (levels_ != nullptr) return levels_->start_allgather(step_, call, *channel_);
  const NcclCommunicator& nccl = *channel_->communicator;
  const std::vector<std::int64_t>& rows = call.work->rows;
  const Request& request = *call.work->request;
  if (are_equal(rows)) {
    return nccl.allgather(call.in, call.out, bytes_of_rows(request, rows.front()), stream());
  }
  std::byte* out = call.out;
  for (int root = 0; root < place_.size; ++root) {
    const std::size_t bytes = bytes_of_rows(request, rows[root]);
    nccl.broadcast(call.in, out, bytes, root, stream());
    out += bytes;
  }
}

// One call if the parts are equal; else every rank is the root of a reduction.
void NcclLaunch::start_reducescatter(const NcclCall& call) {
  const NcclCommunicator& nccl = *channel_->communicator;
  const Request& request = *call.work->request;
  const nccl::DataType type = nccl_type_of(request.dtype);
  const nccl::RedOp op = op_of(request);
  const std::size_t row_count = request.row_count();
  if (request.dims[0] % place_.size == 0) {
    const auto rows = static_cast<std::size_t>(request.dims[0] / place_.size);
    return nccl.start(stream(), nccl.functions().reduce_scatter, call.in, call.out,
                      rows * row_count, type, op);
  }
  const std::byte* in = call.in;
  for (int root = 0; root < place_.size; ++root) {
    const RowRange rows = reducescatter_rows(request.dims[0], root, place_.size);
    const std::size_t count = static_cast<std::size_t>(rows.count) * row_count;
    if (count == 0) continue;
    nccl.start(stream(), nccl.functions().reduce, in, call.out, count, type, op, root);
    in += count * size_of(request.dtype);
  }
}

void NcclLaunch::start_alltoall(const NcclCall& call) {
  const NcclCommunicator& nccl = *channel_->communicator;
  const std::byte* in = call.in;
  std::byte* out = call.out;
  for (int peer = 0; peer < place_.size; ++peer) {
    const std::size_t given = split_bytes(*call.work, place_.rank, peer, place_.size);
    const std::size_t taken = split_bytes(*call.work, peer, place_.rank, place_.size);
    nccl.send(in, given, peer, stream());
    nccl.receive(out, taken, peer, stream());
    in += given;
    out += taken;
  }
}

}  // namespace hvd
