#include "gpu/nccl_communicator.h"

#include <chrono>
#include <thread>

#include "gpu/cuda_objects.h"

namespace hvd {

namespace {

// How often a thread that leaves asks whether the other ranks are leaving.
constexpr auto kLook = std::chrono::microseconds(100);

}  // namespace

NcclCommunicator::NcclCommunicator(const CudaDriver& driver, const NcclLibrary& library, int device,
                                   const nccl::UniqueId& id, int rank, int size)
    : driver_(driver), library_(library), device_(device) {
  const CurrentDevice current(driver_, device_);
  nccl::Config config;
  call(functions().comm_init, &comm_, size, id, rank, &config);
}

NcclCommunicator::~NcclCommunicator() { abort(); }

bool NcclCommunicator::is_busy() const {
  nccl::Result state = nccl::Result::kSuccess;
  call(functions().comm_get_async_error, comm_, &state);
  // An earlier call has failed: ncclGetLastError says which.
  library_.check(state, "NCCL", comm_);
  return state == nccl::Result::kInProgress;
}

void NcclCommunicator::abort() noexcept {
  if (comm_ == nullptr) return;
  free_on(driver_, device_, [this] { functions().comm_abort.call(std::exchange(comm_, nullptr)); });
}

void NcclCommunicator::leave(Nanoseconds limit) noexcept {
  if (comm_ == nullptr) return;
  const std::int64_t deadline_ns = now_ns() + limit.count();
  free_on(driver_, device_, [&] {
    call(functions().comm_finalize, comm_);
    while (is_busy()) {
      if (now_ns() >= deadline_ns) return;
      std::this_thread::sleep_for(kLook);
    }
    functions().comm_destroy.call(std::exchange(comm_, nullptr));
  });
  abort();
}

bool is_in_nccl(Dtype dtype) { return dtype != Dtype::kInt16 && dtype != Dtype::kUint16; }

nccl::DataType nccl_type_of(Dtype dtype) {
  using Type = nccl::DataType;
  static constexpr Type kTypes[kDtypeCount] = {
      Type::kUint8,   Type::kInt8,    Type::kUint8, Type::kInt32,    Type::kInt64, Type::kFloat16,
      Type::kFloat32, Type::kFloat64, Type::kUint8, Type::kBfloat16, Type::kUint8};
  return kTypes[static_cast<int>(dtype)];
}

}  // namespace hvd
