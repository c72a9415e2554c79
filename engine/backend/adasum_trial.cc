#include "backend/adasum_trial.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "collective/adasum_weights.h"
#include "collective/shares.h"
#include "kernels/adasum.h"
#include "kernels/reduce.h"

namespace hvd {

namespace {

// So many elements that the threads' dot products are added up in two steps, and a few.
constexpr std::size_t kMany = 5000;
constexpr std::size_t kFew = 61;
constexpr double kFactor = 0.7;

struct Sample {
  Dtype dtype;
  std::size_t count;

  std::size_t size_bytes() const { return count * size_of(dtype); }
};
constexpr std::array kSamples{Sample{Dtype::kFloat32, kMany}, Sample{Dtype::kFloat32, kFew},
                              Sample{Dtype::kFloat64, kFew}, Sample{Dtype::kFloat16, kFew},
                              Sample{Dtype::kBfloat16, kFew}};

std::size_t bytes_of_all() {
  std::size_t bytes = 0;
  for (const Sample& sample : kSamples) bytes += align_up(sample.size_bytes());
  return bytes;
}

// 1, 2, 3 or -1, so that dot products are the same in any order.
template <typename Value>
void fill(std::byte* to, const Sample& sample, std::size_t vector,
          const std::array<Value, 4>& values) {
  for (std::size_t i = 0; i < sample.count; ++i) {
    const Value value = values[(i + i / 4 * (vector + 1)) % values.size()];
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

void fill(std::byte* to, const Sample& sample, std::size_t vector) {
  switch (sample.dtype) {
    case Dtype::kFloat32:
      return fill(to, sample, vector, std::array{1.0F, 2.0F, 3.0F, -1.0F});
    case Dtype::kFloat64:
      return fill(to, sample, vector, std::array{1.0, 2.0, 3.0, -1.0});
    case Dtype::kFloat16:
      return fill(to, sample, vector, std::array<std::uint16_t, 4>{0x3c00, 0x4000, 0x4200, 0xbc00});
    default:
      return fill(to, sample, vector, std::array<std::uint16_t, 4>{0x3f80, 0x4000, 0x4040, 0xbf80});
  }
}

// The CPU's Adasum of a sample's vectors.
void combine(const Sample& sample, std::size_t vectors, std::byte* to) {
  std::vector<std::byte> memory(vectors * sample.size_bytes());
  std::vector<const std::byte*> sources;
  for (std::size_t vector = 0; vector < vectors; ++vector) {
    sources.push_back(memory.data() + vector * sample.size_bytes());
    fill(memory.data() + vector * sample.size_bytes(), sample, vector);
  }
  std::vector<double> gram(gram_entries(vectors), 0.0);
  accumulate_gram(sample.dtype, sources, sample.count, gram.data());
  std::vector<double> weights(vectors);
  adasum_weights(gram, weights);
  for (double& weight : weights) weight *= kFactor;
  const ReduceSpec spec{.dtype = sample.dtype, .op = ReduceOp::kAdasum, .weights = weights.data()};
  reduce(spec, sources, to, nullptr, sample.count);
}

}  // namespace

// On the GPU: vectors, each with all samples one after the other; a vector of results; and numbers,
// which are dot products, weights and what the kernels need for themselves.
AdasumTrial::AdasumTrial(Gpu& gpu, int device, AdasumKernels& kernels, std::size_t vectors)
    : driver_(gpu.driver()),
      vectors_(vectors),
      stream_(driver_, device),
      pinned_(driver_, device, (vectors + 1) * bytes_of_all()) {
  const std::size_t numbers = kernels.gram_entries() + kernels.weights();
  block_ = gpu.memory().allocate(
      device, pinned_.size_bytes() + numbers * sizeof(double) + kernels.scratch_bytes(kMany));
  const CurrentDevice current(driver_, device);
  copy_in();
  run(kernels, block_->address() + pinned_.size_bytes());
  driver_.copy_out(pinned_.data(), block_->address(), pinned_.size_bytes(), stream_.get());
  done_ = stream_.mark();
  block_->last_use = done_;
}

void AdasumTrial::copy_in() {
  std::memset(pinned_.data(), 0, pinned_.size_bytes());
  std::byte* to = pinned_.data();
  for (std::size_t vector = 0; vector < vectors_; ++vector) {
    for (const Sample& sample : kSamples) {
      fill(to, sample, vector);
      to += align_up(sample.size_bytes());
    }
  }
  driver_.copy_in(block_->address(), pinned_.data(), pinned_.size_bytes(), stream_.get());
}

void AdasumTrial::run(AdasumKernels& kernels, cuda::Address numbers) {
  const cuda::Address weights = numbers + kernels.gram_entries() * sizeof(double);
  const cuda::Address scratch = weights + kernels.weights() * sizeof(double);
  AdasumParts parts{.from = block_->address(), .stride_bytes = bytes_of_all()};
  for (const Sample& sample : kSamples) {
    parts.dtype = sample.dtype;
    parts.count = sample.count;
    kernels.dots(parts, numbers, scratch, stream_.get());
    kernels.find_weights(numbers, 1, weights, stream_.get());
    kernels.sum(parts, weights, kFactor, parts.from + vectors_ * parts.stride_bytes, stream_.get());
    parts.from += align_up(sample.size_bytes());
  }
}

bool AdasumTrial::is_right() const {
  const std::byte* result = pinned_.data() + vectors_ * bytes_of_all();
  return std::ranges::all_of(kSamples, [&](const Sample& sample) {
    std::vector<std::byte> expected(sample.size_bytes());
    combine(sample, vectors_, expected.data());
    const bool is_right = std::memcmp(result, expected.data(), expected.size()) == 0;
    result += align_up(sample.size_bytes());
    return is_right;
  });
}

}  // namespace hvd
