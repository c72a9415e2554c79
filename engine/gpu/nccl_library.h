// NCCL: the functions that the engine uses, found in libnccl at run time.
//
// Types and numbers are those of nccl.h, whose ABI only grows. From 2.14 on, which has
// communicators that do not block.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "core/shared_library.h"
#include "gpu/cuda_driver.h"

namespace hvd {

namespace nccl {

enum class Result : int {
  kSuccess = 0,
  kInProgress = 7,  // of a communicator that does not block
};

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// Those above 4 are made by ncclRedOpCreatePreMulSum.
enum class RedOp : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };

enum class ScalarPlace : int { kHost = 1 };

using Comm = struct CommRecord*;

struct UniqueId {
  std::array<char, 128> bytes;
};

// ncclConfig_t as of 2.14; newer libraries see by `version` that the rest is to be their default.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

}  // namespace nccl

template <typename... Parameters>
struct NcclFunction {
  const char* name;
  nccl::Result (*call)(Parameters...) = nullptr;
};

struct NcclFunctions {
  using Comm = nccl::Comm;
  using Type = nccl::DataType;
  using Op = nccl::RedOp;
  using Stream = cuda::Stream;

  NcclFunction<int*> get_version{"ncclGetVersion"};
  NcclFunction<nccl::UniqueId*> get_unique_id{"ncclGetUniqueId"};
  NcclFunction<Comm*, int, nccl::UniqueId, int, nccl::Config*> comm_init{"ncclCommInitRankConfig"};
  NcclFunction<Comm> comm_finalize{"ncclCommFinalize"};
  NcclFunction<Comm> comm_destroy{"ncclCommDestroy"};
  NcclFunction<Comm> comm_abort{"ncclCommAbort"};
  NcclFunction<Comm, nccl::Result*> comm_get_async_error{"ncclCommGetAsyncError"};
  NcclFunction<> group_start{"ncclGroupStart"};
  NcclFunction<> group_end{"ncclGroupEnd"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, Comm, Stream> all_reduce{"ncclAllReduce"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, int, Comm, Stream> reduce{"ncclReduce"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, Comm, Stream> reduce_scatter{
      "ncclReduceScatter"};
  NcclFunction<const void*, void*, std::size_t, Type, int, Comm, Stream> broadcast{"ncclBroadcast"};
  NcclFunction<const void*, void*, std::size_t, Type, Comm, Stream> all_gather{"ncclAllGather"};
  NcclFunction<const void*, std::size_t, Type, int, Comm, Stream> send{"ncclSend"};
  NcclFunction<void*, std::size_t, Type, int, Comm, Stream> receive{"ncclRecv"};
  NcclFunction<Op*, void*, Type, nccl::ScalarPlace, Comm> create_scaled_sum{
      "ncclRedOpCreatePreMulSum"};
  NcclFunction<Op, Comm> destroy_op{"ncclRedOpDestroy"};

  const char* (*get_error_string)(nccl::Result) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;
};

class NcclLibrary {
 public:
  // Throws Error(kSystem) where there is no such library, or it is too old.
  explicit NcclLibrary(const std::string& path);

  const NcclFunctions& functions() const { return functions_; }
  int version() const { return version_; }  // such as 23203
  const std::string& path() const { return library_.path(); }

  // Throws Error(kSystem) with NCCL's own text. `comm`: whose last error that is; may be null.
  // What is in progress is no error.
  void check(nccl::Result result, const char* function, nccl::Comm comm) const;

 private:
  void load();

  const SharedLibrary library_;
  NcclFunctions functions_;
  int version_ = 0;
};

}  // namespace hvd
