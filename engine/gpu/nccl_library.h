// NCCL: the functions that the engine uses, found in libnccl at run time.
//
// Types and numbers are those of nccl.h. Its ABI only grows. NCCL must be 2.14 or newer: older ones
// have no communicators that do not block.
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
  kRemoteError = 6,
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

enum class RedOp : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };

using Comm = struct CommRecord*;

struct UniqueId {
  std::array<char, 128> bytes;
};

// ncclConfig_t of 2.14. Newer libraries read `version` and use their defaults for the missing
// fields.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

}  // namespace nccl

template <typename... Parameters>
using NcclFunction = LibraryFunction<nccl::Result, Parameters...>;

struct NcclFunctions {
  using Comm = nccl::Comm;
  using Type = nccl::DataType;
  using Op = nccl::RedOp;
  using Stream = cuda::Stream;

  explicit NcclFunctions(const SharedLibrary& library) : from(library) {}

  const SharedLibrary& from;
  NcclFunction<int*> get_version{from, "ncclGetVersion"};
  NcclFunction<nccl::UniqueId*> get_unique_id{from, "ncclGetUniqueId"};
  NcclFunction<Comm*, int, nccl::UniqueId, int, nccl::Config*> comm_init{from,
                                                                         "ncclCommInitRankConfig"};
  NcclFunction<Comm> comm_finalize{from, "ncclCommFinalize"};
  NcclFunction<Comm> comm_destroy{from, "ncclCommDestroy"};
  NcclFunction<Comm> comm_abort{from, "ncclCommAbort"};
  NcclFunction<Comm, nccl::Result*> comm_get_async_error{from, "ncclCommGetAsyncError"};
  NcclFunction<> group_start{from, "ncclGroupStart"};
  NcclFunction<> group_end{from, "ncclGroupEnd"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, Comm, Stream> all_reduce{from,
                                                                                   "ncclAllReduce"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, int, Comm, Stream> reduce{from,
                                                                                    "ncclReduce"};
  NcclFunction<const void*, void*, std::size_t, Type, Op, Comm, Stream> reduce_scatter{
      from, "ncclReduceScatter"};
  NcclFunction<const void*, void*, std::size_t, Type, int, Comm, Stream> broadcast{from,
                                                                                   "ncclBroadcast"};
  NcclFunction<const void*, void*, std::size_t, Type, Comm, Stream> all_gather{from,
                                                                               "ncclAllGather"};
  NcclFunction<const void*, std::size_t, Type, int, Comm, Stream> send{from, "ncclSend"};
  NcclFunction<void*, std::size_t, Type, int, Comm, Stream> receive{from, "ncclRecv"};

  LibraryFunction<const char*, nccl::Result> get_error_string{from, "ncclGetErrorString"};
  LibraryFunction<const char*, Comm> get_last_error{from, "ncclGetLastError"};
};

class NcclLibrary {
 public:
  // Throws Error(kSystem) if there is no such library, or if it is too old.
  explicit NcclLibrary(const std::string& path, Loading loading = Loading::kIfNeeded);

  const NcclFunctions& functions() const { return functions_; }
  int version() const { return version_; }  // such as 23203

  // Throws Error(kSystem), or UnnamedLoss, with NCCL's own text. A call in progress is no error.
  // `comm`: for the text of its last error; may be null.
  void check(nccl::Result result, const char* function, nccl::Comm comm) const;

 private:
  const SharedLibrary library_;
  const NcclFunctions functions_;
  int version_ = 0;
};

}  // namespace hvd
