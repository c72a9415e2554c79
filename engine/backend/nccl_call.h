// One tensor of a bucket as NCCL gets it, and what NCCL calls what is wanted of it.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "backend/work.h"
#include "gpu/nccl_communicator.h"

namespace hvd {

// Addresses on the communicator's device.
struct NcclCall {
  const Work* work;
  const std::byte* in;
  std::byte* out;
};

// Ends the group when an error leaves it open: it belongs to this thread, and would swallow later
// calls.
class NcclGroup {
 public:
  explicit NcclGroup(const NcclCommunicator& communicator);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  void close();

 private:
  const NcclCommunicator& communicator_;
  bool is_open_ = true;
};

// Whether NCCL can do for this request what the engine promises; the same on all ranks.
bool nccl_runs(const Request& request, int size);
// All that a result is multiplied by, for a set of `size` ranks.
double factor_of(const Request& request, int size);
// The request's operation, on numbers that are multiplied by `factor` before.
nccl::RedOp op_of(const Request& request, NcclCommunicator& communicator, double factor);
bool are_equal(const std::vector<std::int64_t>& rows);

}  // namespace hvd
