#include "gpu/gpu_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace hvd {

namespace {

// Enough to keep the largest GPUs busy; threads take several elements where there are more.
constexpr std::size_t kMostReducingThreads = 2048 * GpuModule::kThreads;

// All rows of a launch have as many blocks as the longest: so no part is much longer than others.
constexpr std::uint64_t kMostMoved = 128UL << 10;  // elements

std::vector<MovedPiece> parts_of(std::span<const MovedPiece> pieces, std::size_t element_bytes) {
  std::vector<MovedPiece> parts;
  for (const MovedPiece& piece : pieces) {
    for (std::uint64_t at = 0; at < piece.count; at += kMostMoved) {
      parts.push_back({.to = piece.to + at * element_bytes,
                       .from = piece.from + at * element_bytes,
                       .count = std::min(kMostMoved, piece.count - at)});
    }
  }
  return parts;
}

constexpr std::size_t kMostThreads = 256 * GpuModule::kThreads;
constexpr std::size_t kPerThread = 16;              // elements of a dot product, at least
constexpr std::size_t kMostPartialDots = 4U << 20;  // of all threads
constexpr std::size_t kAddedUp = 256;               // by one thread

}  // namespace

GpuModule::GpuModule(const CudaDriver& driver, int device, const std::string& text)
    : DeviceObject(driver, device) {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().module_load, &module_, static_cast<const void*>(text.c_str()));
}

GpuModule::~GpuModule() { free_with(driver_.functions().module_unload, module_); }

void GpuModule::launch(const std::string& kernel, std::size_t threads, void** arguments,
                       cuda::Stream stream, unsigned rows) {
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  const unsigned of_block = std::min(kThreads, static_cast<unsigned>(threads));
  driver_.call(driver_.functions().launch_kernel, function_of(kernel), blocks, rows, 1U, of_block,
               1U, 1U, 0U, stream, arguments, static_cast<void**>(nullptr));
}

cuda::Function GpuModule::function_of(const std::string& kernel) {
  const auto found = functions_.find(kernel);
  if (found != functions_.end()) return found->second;
  cuda::Function function = nullptr;
  driver_.call(driver_.functions().module_get_function, &function, module_, kernel.c_str());
  return functions_[kernel] = function;
}

ReductionKernels::ReductionKernels(const CudaDriver& driver, int device)
    : module_(driver, device, reduction_ptx()) {}

void ReductionKernels::launch(const KernelCall& call, std::span<const cuda::Address> sources,
                              cuda::Address to, std::size_t count, cuda::Stream stream) {
  if (count == 0) return;
  std::array<cuda::Address, kMostSources> from{};
  std::ranges::copy(sources, from.begin());
  std::uint64_t count_argument = count;
  auto source_count = static_cast<std::uint32_t>(sources.size());
  KernelCall values = call;
  std::array<void*, 6> arguments{
      &to, &count_argument, &source_count, &values.prescale, &values.postscale, from.data()};
  const std::size_t threads = std::min(count, kMostReducingThreads);
  const std::lock_guard guard(mutex_);
  module_.launch(reduction_kernel_name(call.dtype, call.op), threads, arguments.data(), stream);
}

MoveKernels::MoveKernels(const CudaDriver& driver, int device)
    : module_(driver, device, move_ptx()) {}

void MoveKernels::launch(Dtype dtype, double factor, std::span<const MovedPiece> pieces,
                         cuda::Stream stream) {
  const std::vector<MovedPiece> parts = parts_of(pieces, size_of(dtype));
  const std::lock_guard guard(mutex_);
  for (std::span<const MovedPiece> left = parts; !left.empty();) {
    const std::size_t count = std::min(left.size(), kMostPieces);
    launch_some(dtype, factor, left.first(count), stream);
    left = left.subspan(count);
  }
}

void MoveKernels::launch_some(Dtype dtype, double factor, std::span<const MovedPiece> pieces,
                              cuda::Stream stream) {
  std::array<MovedPiece, kMostPieces> table{};
  std::ranges::copy(pieces, table.begin());
  const std::uint64_t longest = std::ranges::max(pieces, {}, &MovedPiece::count).count;
  std::array<void*, 2> arguments{&factor, table.data()};
  const std::size_t threads = (longest + kMovedTogether - 1) / kMovedTogether;
  module_.launch(move_kernel_name(dtype), threads, arguments.data(), stream,
                 static_cast<unsigned>(pieces.size()));
}

AdasumKernels::AdasumKernels(const CudaDriver& driver, int device, std::size_t vectors)
    : vectors_(vectors), tree_(adasum_tree(vectors)), module_(driver, device, adasum_ptx()) {}

// A power of two.
std::size_t AdasumKernels::dot_threads(std::size_t count) const {
  const std::size_t useful = std::bit_ceil(std::max<std::size_t>(count / kPerThread, 1));
  const std::size_t affordable = std::bit_floor(kMostPartialDots / gram_entries());
  return std::min({useful, affordable, kMostThreads});
}

// The sums of all threads, and the sums of groups of threads.
std::size_t AdasumKernels::scratch_bytes(std::size_t count) const {
  const std::size_t threads = dot_threads(count);
  return gram_entries() * (threads + threads / kAddedUp) * sizeof(double);
}

void AdasumKernels::dots(const AdasumParts& parts, cuda::Address gram, cuda::Address scratch,
                         cuda::Stream stream) {
  const std::size_t threads = dot_threads(parts.count);
  const bool is_small = threads == 1;
  cuda::Address to = is_small ? gram : scratch;
  std::uint64_t count = parts.count;
  auto vectors = static_cast<std::uint32_t>(vectors_);
  cuda::Address from = parts.from;
  std::uint64_t stride = parts.stride_bytes;
  std::array<void*, 5> arguments{&to, &count, &vectors, &from, &stride};
  module_.launch(dots_kernel_name(parts.dtype), threads, arguments.data(), stream);
  if (is_small) return;
  if (threads <= kAddedUp) return add_up(scratch, threads, gram_entries(), gram, stream);
  const std::size_t groups = threads / kAddedUp;
  const cuda::Address sums = scratch + gram_entries() * threads * sizeof(double);
  add_up(scratch, kAddedUp, gram_entries() * groups, sums, stream);
  add_up(sums, groups, gram_entries(), gram, stream);
}

void AdasumKernels::add_up(cuda::Address from, std::size_t values, std::size_t sums,
                           cuda::Address to, cuda::Stream stream) {
  std::uint64_t value_count = values;
  std::uint64_t sum_count = sums;
  std::array<void*, 4> arguments{&to, &from, &value_count, &sum_count};
  module_.launch(kAddUpKernel, std::min(sums, kMostThreads), arguments.data(), stream);
}

void AdasumKernels::find_weights(cuda::Address grams, std::size_t tensors, cuda::Address weights,
                                 cuda::Stream stream) {
  auto vectors = static_cast<std::uint32_t>(vectors_);
  std::uint64_t tensor_count = tensors;
  auto join_count = static_cast<std::uint32_t>(tree_.joins.size());
  std::array<AdasumTree::Join, kMostAdasumVectors> joins{};
  std::ranges::copy(tree_.joins, joins.begin());
  std::array<std::uint32_t, kMostAdasumVectors> order{};
  std::ranges::copy(tree_.order, order.begin());
  std::array<void*, 7> arguments{&weights,    &grams,       &vectors,    &tensor_count,
                                 &join_count, joins.data(), order.data()};
  module_.launch(kWeightsKernel, std::min(tensors, kMostThreads), arguments.data(), stream);
}

void AdasumKernels::sum(const AdasumParts& parts, cuda::Address weights, double factor,
                        cuda::Address to, cuda::Stream stream) {
  if (parts.count == 0) return;
  std::uint64_t count = parts.count;
  auto vectors = static_cast<std::uint32_t>(vectors_);
  cuda::Address from = parts.from;
  std::uint64_t stride = parts.stride_bytes;
  std::array<void*, 7> arguments{&to, &count, &vectors, &from, &stride, &weights, &factor};
  const std::size_t threads = std::min(parts.count, 8 * kMostThreads);
  module_.launch(weighted_sum_kernel_name(parts.dtype), threads, arguments.data(), stream);
}

}  // namespace hvd
