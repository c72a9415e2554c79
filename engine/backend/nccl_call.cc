#include "backend/nccl_call.h"

#include <algorithm>

namespace hvd {

NcclGroup::NcclGroup(const NcclCommunicator& communicator) : communicator_(communicator) {
  communicator_.call(communicator_.functions().group_start);
}

NcclGroup::~NcclGroup() {
  if (is_open_) communicator_.functions().group_end.call();
}

void NcclGroup::close() {
  is_open_ = false;
  communicator_.call(communicator_.functions().group_end);
}

bool nccl_runs(const Request& request, int size) {
  if (!is_reduction(request.kind)) return true;
  if (request.op == ReduceOp::kAdasum || !is_in_nccl(request.dtype)) return false;
  return is_float(request.dtype) || (request.prescale == 1.0 && postscale_of(request, size) == 1.0);
}

double postscale_of(const Request& request, int size) {
  return request.op == ReduceOp::kAverage ? request.postscale / size : request.postscale;
}

nccl::RedOp op_of(const Request& request) {
  if (request.dtype == Dtype::kBool && request.op == ReduceOp::kSum) return nccl::RedOp::kMax;
  if (request.dtype == Dtype::kBool && request.op == ReduceOp::kProduct) return nccl::RedOp::kMin;
  switch (request.op) {
    case ReduceOp::kMin:
      return nccl::RedOp::kMin;
    case ReduceOp::kMax:
      return nccl::RedOp::kMax;
    case ReduceOp::kProduct:
      return nccl::RedOp::kProduct;
    default:
      return nccl::RedOp::kSum;
  }
}

bool are_equal(const std::vector<std::int64_t>& rows) {
  return std::ranges::all_of(rows, [&](std::int64_t each) { return each == rows.front(); });
}

}  // namespace hvd
