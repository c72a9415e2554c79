#include "backend/nccl_reductions.h"

#include <algorithm>
#include <utility>

#include "collective/shares.h"

namespace hvd {

namespace {

// Tensors that can be reduced as one.
struct Batch {
  Dtype dtype;
  nccl::RedOp op;
  std::vector<const NcclCall*> calls;

  std::size_t size_bytes() const {
    std::size_t bytes = 0;
    for (const NcclCall* call : calls) bytes += call->work->request->size_bytes();
    return bytes;
  }
};

bool is_small(const Request& request) { return request.size_bytes() < kPackedBelow; }

// Those with one tensor need no buffer.
std::vector<Batch> batches_of(std::span<const NcclCall> calls) {
  std::vector<Batch> batches;
  for (const NcclCall& call : calls) {
    const Request& request = *call.work->request;
    if (request.element_count() == 0) continue;
    const nccl::RedOp op = op_of(request);
    const auto fits = [&](const Batch& batch) {
      return is_small(request) && batch.dtype == request.dtype && batch.op == op &&
             is_small(*batch.calls.front()->work->request);
    };
    const auto found = std::ranges::find_if(batches, fits);
    if (found == batches.end()) {
      batches.push_back({.dtype = request.dtype, .op = op, .calls = {&call}});
    } else {
      found->calls.push_back(&call);
    }
  }
  return batches;
}

void reduce_in_place(const Batch& batch, int size, ReductionPlan& plan) {
  const NcclCall& call = *batch.calls.front();
  const Request& request = *call.work->request;
  const std::size_t count = request.element_count();
  const std::byte* in = call.in;
  if (request.prescale != 1.0) {
    plan.before.add(batch.dtype, request.prescale, call.in, call.out, count);
    in = call.out;
  }
  plan.calls.push_back(
      {.in = in, .out = call.out, .count = count, .dtype = batch.dtype, .op = batch.op});
  const double factor = postscale_of(request, size);
  if (factor != 1.0) plan.after.add(batch.dtype, factor, call.out, call.out, count);
}

void reduce_packed(const Batch& batch, int size, std::byte* buffer, ReductionPlan& plan) {
  std::byte* at = buffer;
  for (const NcclCall* call : batch.calls) {
    const Request& request = *call->work->request;
    const std::size_t count = request.element_count();
    plan.before.add(batch.dtype, request.prescale, call->in, at, count);
    plan.after.add(batch.dtype, postscale_of(request, size), at, call->out, count);
    at += request.size_bytes();
  }
  const auto bytes = static_cast<std::size_t>(at - buffer);
  plan.calls.push_back({.in = buffer,
                        .out = buffer,
                        .count = bytes / size_of(batch.dtype),
                        .dtype = batch.dtype,
                        .op = batch.op});
}

}  // namespace

void ScaledMoves::add(Dtype dtype, double factor, const std::byte* from, std::byte* to,
                      std::size_t count) {
  const auto found = std::ranges::find_if(
      list_, [&](const ScaledMove& move) { return move.dtype == dtype && move.factor == factor; });
  ScaledMove& move =
      found != list_.end()
          ? *found
          : list_.emplace_back(ScaledMove{.dtype = dtype, .factor = factor, .pieces = {}});
  move.pieces.push_back(
      {.to = cuda::address_of(to), .from = cuda::address_of(from), .count = count});
}

std::size_t packed_bytes(std::span<const NcclCall> calls) {
  std::size_t bytes = 0;
  for (const Batch& batch : batches_of(calls)) {
    if (batch.calls.size() > 1) bytes += align_up(batch.size_bytes());
  }
  return bytes;
}

ReductionPlan plan_allreduces(std::span<const NcclCall> calls, int size, std::byte* buffer) {
  ReductionPlan plan;
  for (const Batch& batch : batches_of(calls)) {
    if (batch.calls.size() == 1) {
      reduce_in_place(batch, size, plan);
    } else {
      reduce_packed(batch, size, buffer, plan);
      buffer += align_up(batch.size_bytes());
    }
  }
  return plan;
}

}  // namespace hvd
