#include "backend/adasum_negotiation.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backend/trial_numbers.h"
#include "collective/adasum_weights.h"
#include "collective/shares.h"
#include "kernels/adasum.h"
#include "kernels/reduce.h"

namespace hvd {

namespace {

// A sample with many elements, for which threads add up dot products in two steps, and a small one.
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

void fill(std::byte* to, const Sample& sample, std::size_t vector) {
  for (std::size_t i = 0; i < sample.count; ++i) {
    write_trial_number(to, sample.dtype, i, (i + i / 4 * (vector + 1)) % 4);
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

// The block on the GPU has vectors, each with all samples one after the other, then a vector of
// results, then numbers: dot products, weights and scratch memory of the kernels.
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

void AdasumNegotiation::begin(int device) {
  has_begun_ = true;
  const auto vectors = static_cast<std::size_t>(group_.place.size);
  if (vectors > kMostAdasumVectors) {
    obstacle_ = "there are more than " + std::to_string(kMostAdasumVectors) + " ranks";
    return;
  }
  attempt([&] {
    kernels_ = std::make_unique<AdasumKernels>(group_.gpu.driver(), device, vectors);
    trial_ = std::make_unique<AdasumTrial>(group_.gpu, device, *kernels_, vectors);
  });
  when([this] { return trial_->is_done(); }, [this] { judge(); });
}

void AdasumNegotiation::judge() {
  if (problem_.empty() && !trial_->is_right()) {
    problem_ = "this GPU does not combine as the CPU does";
  }
  agree([this] {
    trial_.reset();
    if (obstacle_) kernels_.reset();
  });
}

}  // namespace hvd
