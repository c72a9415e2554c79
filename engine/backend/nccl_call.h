// One tensor of a bucket as NCCL gets it, and NCCL's names for its operation.
#pragma once

#include <cstddef>

#include "backend/work.h"
#include "gpu/nccl_communicator.h"

namespace hvd {

// Addresses on the communicator's device.
struct NcclCall {
  const Work* work;
  const std::byte* in;
  std::byte* out;
};

// Ends the group if an error leaves it open. An open group belongs to this thread, and would delay
// its later calls.
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

// Whether NCCL gives the results that the engine promises for this request. The same on all ranks.
bool nccl_runs(const Request& request, int size);
// The factor of a result, for a set of `size` ranks.
double postscale_of(const Request& request, int size);
// The request's operation, without its factors.
nccl::RedOp op_of(const Request& request);
bool are_equal(const std::vector<std::int64_t>& rows);

}  // namespace hvd
