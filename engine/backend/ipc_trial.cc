#include "backend/ipc_trial.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/reduce.h"

namespace hvd {

namespace {

constexpr std::size_t kCount = 61;  // of a dtype; not all threads of a block
constexpr std::size_t kArea = 512;  // bytes for them
constexpr std::size_t kNumbers = kDtypeCount * kArea;
constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

constexpr std::array<int, 4> kValues{1, 2, 3, -1};
constexpr std::array<std::uint16_t, 4> kHalves{0x3c00, 0x4000, 0x4200, 0xbc00};  // as float16

template <typename Value>
void write(std::byte* to, std::size_t index, Value value) {
  std::memcpy(to + index * sizeof value, &value, sizeof value);
}

void write_number(std::byte* to, Dtype dtype, std::size_t index, std::size_t which) {
  const int value = kValues[which];
  switch (dtype) {
    case Dtype::kFloat16:
      return write(to, index, kHalves[which]);
    case Dtype::kBfloat16: {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      return write(to, index, static_cast<std::uint16_t>(bits >> 16U));
    }
    case Dtype::kFloat32:
      return write(to, index, static_cast<float>(value));
    case Dtype::kFloat64:
      return write(to, index, static_cast<double>(value));
    case Dtype::kInt64:
      return write(to, index, static_cast<std::int64_t>(value));
    case Dtype::kInt32:
      return write(to, index, static_cast<std::int32_t>(value));
    case Dtype::kBool:
      return write(to, index, static_cast<std::uint8_t>(which % 2));
    default:
      if (size_of(dtype) == 2) return write(to, index, static_cast<std::int16_t>(value));
      return write(to, index, static_cast<std::int8_t>(value));
  }
}

// Factors that show whether they are applied, and where.
KernelCall call_of(int dtype, ReduceOp op) {
  KernelCall call{.dtype = static_cast<Dtype>(dtype), .op = op};
  if (is_float(call.dtype)) {
    call.prescale = 0.7;
    call.postscale = 1.0 / 3.0;
  }
  return call;
}

std::size_t result_bytes(int size) {
  return static_cast<std::size_t>(size) * kNumbers + kOps.size() * kNumbers;
}

}  // namespace

std::vector<std::byte> trial_numbers(int rank) {
  std::vector<std::byte> bytes(kNumbers);
  for (std::size_t dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t which = (i + i / 4 * static_cast<std::size_t>(rank + 1) + dtype) % 4;
      write_number(bytes.data() + dtype * kArea, static_cast<Dtype>(dtype), i, which);
    }
  }
  return bytes;
}

std::vector<std::byte> trial_results(int size) {
  std::vector<std::byte> results;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<std::byte> numbers = trial_numbers(rank);
    results.insert(results.end(), numbers.begin(), numbers.end());
  }
  results.resize(result_bytes(size));
  std::byte* to = results.data() + static_cast<std::size_t>(size) * kNumbers;
  for (const ReduceOp op : kOps) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype, to += kArea) {
      std::vector<const std::byte*> sources;
      for (int rank = 0; rank < size; ++rank) {
        sources.push_back(results.data() + static_cast<std::size_t>(rank) * kNumbers +
                          static_cast<std::size_t>(dtype) * kArea);
      }
      const KernelCall call = call_of(dtype, op);
      const ReduceSpec spec{
          .dtype = call.dtype, .op = op, .prescale = call.prescale, .postscale = call.postscale};
      reduce(spec, sources, to, nullptr, kCount);
    }
  }
  return results;
}

IpcTrial::IpcTrial(Gpu& gpu, int device, Place place)
    : gpu_(gpu),
      place_(place),
      stream_(gpu.driver(), device),
      pinned_(gpu.driver(), device, result_bytes(place.size)),
      block_(gpu.memory().allocate(device, result_bytes(place.size))) {}

void IpcTrial::show(const IpcMemory& own) {
  const std::vector<std::byte> numbers = trial_numbers(place_.rank);
  std::memcpy(pinned_.data(), numbers.data(), numbers.size());
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, stream_.device());
  driver.copy_in(own.address(), pinned_.data(), numbers.size(), stream_.get());
  event_ = stream_.mark();
}

void IpcTrial::take(const IpcPeers& peers) {
  const CudaDriver& driver = gpu_.driver();
  const CurrentDevice current(driver, stream_.device());
  const std::size_t bytes = result_bytes(place_.size);
  driver.clear(block_->address(), bytes, stream_.get());
  cuda::Address to = block_->address();
  for (const cuda::Address from : peers.addresses) {
    driver.copy(to, from, kNumbers, stream_.get());
    to += kNumbers;
  }
  for (const ReduceOp op : kOps) {
    std::vector<cuda::Address> sources = peers.addresses;
    for (int dtype = 0; dtype < kDtypeCount; ++dtype, to += kArea) {
      peers.kernels->launch(call_of(dtype, op), sources, to, kCount, stream_.get());
      for (cuda::Address& source : sources) source += kArea;
    }
  }
  driver.copy_out(pinned_.data(), block_->address(), bytes, stream_.get());
  event_ = stream_.mark();
  block_->last_use = event_;
}

bool IpcTrial::is_right() const {
  const std::vector<std::byte> expected = trial_results(place_.size);
  return std::memcmp(pinned_.data(), expected.data(), expected.size()) == 0;
}

}  // namespace hvd
