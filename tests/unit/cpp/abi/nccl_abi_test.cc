// gpu/nccl_library.h against NVIDIA's nccl.h.
#include <nccl.h>

#include "agreement.h"
#include "gpu/nccl_library.h"

namespace hvd::test {

HVD_COUNTERPART(std::remove_pointer_t<nccl::Comm>, std::remove_pointer_t<ncclComm_t>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Stream>, std::remove_pointer_t<cudaStream_t>)
HVD_COUNTERPART(nccl::Result, ncclResult_t)
HVD_COUNTERPART(nccl::DataType, ncclDataType_t)
HVD_COUNTERPART(nccl::RedOp, ncclRedOp_t)
HVD_COUNTERPART(nccl::UniqueId, ncclUniqueId)
HVD_COUNTERPART(nccl::Config, ncclConfig_t)

namespace {

#define NCCL_FUNCTIONS(X)                        \
  X(get_version, ncclGetVersion)                 \
  X(get_unique_id, ncclGetUniqueId)              \
  X(comm_init, ncclCommInitRankConfig)           \
  X(comm_finalize, ncclCommFinalize)             \
  X(comm_destroy, ncclCommDestroy)               \
  X(comm_abort, ncclCommAbort)                   \
  X(comm_get_async_error, ncclCommGetAsyncError) \
  X(group_start, ncclGroupStart)                 \
  X(group_end, ncclGroupEnd)                     \
  X(all_reduce, ncclAllReduce)                   \
  X(reduce, ncclReduce)                          \
  X(reduce_scatter, ncclReduceScatter)           \
  X(broadcast, ncclBroadcast)                    \
  X(all_gather, ncclAllGather)                   \
  X(send, ncclSend)                              \
  X(receive, ncclRecv)                           \
  X(get_error_string, ncclGetErrorString)        \
  X(get_last_error, ncclGetLastError)

TEST_CASE("functions of libnccl have the parameters that NVIDIA's header says") {
  using Table = NcclFunctions;
  enum class Members { NCCL_FUNCTIONS(HVD_COUNTED) kCount };
  static_assert(has_functions<Table>(static_cast<std::size_t>(Members::kCount)));
  NCCL_FUNCTIONS(HVD_AGREES)
  const SharedLibrary library(NCCL_STAND_IN);
  const Table table(library);
  NCCL_FUNCTIONS(HVD_HAS_NAME)
}

#define SAME_NUMBER(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && static_cast<int>(ours) == theirs);
SAME_NUMBER(nccl::Result::kSuccess, ncclSuccess)
SAME_NUMBER(nccl::Result::kRemoteError, ncclRemoteError)
SAME_NUMBER(nccl::Result::kInProgress, ncclInProgress)
SAME_NUMBER(nccl::DataType::kInt8, ncclInt8)
SAME_NUMBER(nccl::DataType::kUint8, ncclUint8)
SAME_NUMBER(nccl::DataType::kInt32, ncclInt32)
SAME_NUMBER(nccl::DataType::kInt64, ncclInt64)
SAME_NUMBER(nccl::DataType::kFloat16, ncclFloat16)
SAME_NUMBER(nccl::DataType::kFloat32, ncclFloat32)
SAME_NUMBER(nccl::DataType::kFloat64, ncclFloat64)
SAME_NUMBER(nccl::DataType::kBfloat16, ncclBfloat16)
SAME_NUMBER(nccl::RedOp::kSum, ncclSum)
SAME_NUMBER(nccl::RedOp::kProduct, ncclProd)
SAME_NUMBER(nccl::RedOp::kMax, ncclMax)
SAME_NUMBER(nccl::RedOp::kMin, ncclMin)

static_assert(has_same_layout<nccl::UniqueId>);

// Newer versions of NCCL have more fields, behind these.
using Config = nccl::Config;
static_assert(sizeof(Config) <= sizeof(ncclConfig_t) && alignof(Config) == alignof(ncclConfig_t));
#define CONFIG_FIELD(name)                                                \
  static_assert(offsetof(Config, name) == offsetof(ncclConfig_t, name) && \
                std::is_same_v<decltype(Config::name), decltype(ncclConfig_t::name)>);
CONFIG_FIELD(size)
CONFIG_FIELD(magic)
CONFIG_FIELD(version)
CONFIG_FIELD(blocking)
constexpr ncclConfig_t kDefaults = NCCL_CONFIG_INITIALIZER;
static_assert(Config{}.magic == kDefaults.magic);
static_assert(Config{}.version == NCCL_VERSION(2, 14, 0));
static_assert(Config{}.version <= kDefaults.version);

}  // namespace
}  // namespace hvd::test
