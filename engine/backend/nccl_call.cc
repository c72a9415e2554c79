#include "backend/nccl_call.h"

#include <algorithm>

namespace hvd {

namespace {

bool is_sum(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

}  // namespace

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
  const double factor = factor_of(request, size);
  if (factor == 1.0 && request.prescale == 1.0) return true;
  return is_float(request.dtype) && is_sum(request.op) && is_factor_of(request.dtype, factor);
}

double factor_of(const Request& request, int size) {
  const double factor = request.prescale * request.postscale;
  return request.op == ReduceOp::kAverage ? factor / size : factor;
}

nccl::RedOp op_of(const Request& request, NcclCommunicator& communicator, double factor) {
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
      return communicator.scaled_sum(request.dtype, factor);
  }
}

bool are_equal(const std::vector<std::int64_t>& rows) {
  return std::ranges::all_of(rows, [&](std::int64_t each) { return each == rows.front(); });
}

}  // namespace hvd
