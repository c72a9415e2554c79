#include "gpu/nccl_communicator.h"

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "gpu/cuda_objects.h"

namespace hvd {

namespace {

// How often a thread that leaves asks whether the other ranks are leaving.
constexpr auto kLook = std::chrono::microseconds(100);

using Scalar = std::array<std::byte, 8>;

template <typename Value>
Scalar scalar_of(Value value) {
  Scalar scalar{};
  std::memcpy(scalar.data(), &value, sizeof value);
  return scalar;
}

// The float16 nearest to a number in its normal range, ties to even.
std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t half = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  return static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U));
}

std::uint16_t bfloat_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

Scalar scalar_of(Dtype dtype, double factor) {
  switch (dtype) {
    case Dtype::kFloat16:
      return scalar_of(half_bits(static_cast<float>(factor)));
    case Dtype::kBfloat16:
      return scalar_of(bfloat_bits(static_cast<float>(factor)));
    case Dtype::kFloat64:
      return scalar_of(factor);
    default:
      return scalar_of(static_cast<float>(factor));
  }
}

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
    forget_ops();
    call(functions().comm_finalize, comm_);
    while (is_busy()) {
      if (now_ns() >= deadline_ns) return;
      std::this_thread::sleep_for(kLook);
    }
    functions().comm_destroy.call(std::exchange(comm_, nullptr));
  });
  abort();
}

nccl::RedOp NcclCommunicator::scaled_sum(Dtype dtype, double factor) {
  if (factor == 1.0) return nccl::RedOp::kSum;
  const auto found = ops_.find({dtype, factor});
  if (found != ops_.end()) return found->second;
  if (ops_.size() >= kMostOps) forget_ops();
  Scalar scalar = scalar_of(dtype, factor);
  nccl::RedOp op = nccl::RedOp::kSum;
  call(functions().create_scaled_sum, &op, static_cast<void*>(scalar.data()), nccl_type_of(dtype),
       nccl::ScalarPlace::kHost, comm_);
  return ops_[{dtype, factor}] = op;
}

// Collectives that were started with an op do not need it any more.
void NcclCommunicator::forget_ops() {
  for (const auto& [_, op] : ops_) functions().destroy_op.call(op, comm_);
  ops_.clear();
}

bool is_in_nccl(Dtype dtype) { return dtype != Dtype::kInt16 && dtype != Dtype::kUint16; }

nccl::DataType nccl_type_of(Dtype dtype) {
  using Type = nccl::DataType;
  static constexpr Type kTypes[kDtypeCount] = {
      Type::kUint8,   Type::kInt8,    Type::kUint8, Type::kInt32,    Type::kInt64, Type::kFloat16,
      Type::kFloat32, Type::kFloat64, Type::kUint8, Type::kBfloat16, Type::kUint8};
  return kTypes[static_cast<int>(dtype)];
}

bool is_factor_of(Dtype dtype, double factor) {
  const double magnitude = std::abs(factor);
  if (dtype == Dtype::kFloat16) return magnitude >= 0x1p-14 && magnitude <= 65504.0;
  if (dtype == Dtype::kFloat64) return std::isfinite(factor);
  return magnitude >= 0x1p-126 && magnitude <= 0x1p127;
}

}  // namespace hvd
