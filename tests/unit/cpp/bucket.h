// One tensor of a bucket as all ranks see it: their inputs, and what each of them must get.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "backend/host_backend.h"

namespace hvd::test {

using Bytes = std::vector<std::byte>;

inline constexpr std::size_t kMargin = 64;  // behind every output; must stay as it is
inline constexpr std::byte kUntouched{0xa5};

struct Tensor {
  Request request;
  std::vector<Bytes> in;        // by rank
  std::vector<Bytes> expected;  // by rank
  std::vector<Bytes> out;       // by rank, with margin
  std::set<int> absent;
  int root = 0;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> splits;
  std::vector<std::vector<float>> errors;  // by rank, of a low-bit format; empty: not wanted
  Rounding rounding;

  int size() const { return static_cast<int>(in.size()); }

  // Outputs as they are before a run.
  void wipe() {
    out.clear();
    for (const Bytes& bytes : expected) out.emplace_back(bytes.size() + kMargin, kUntouched);
  }

  Work work(int rank) {
    const bool is_absent = absent.contains(rank);
    return {.request = &request,
            .in = is_absent ? nullptr : in[rank].data(),
            .out = is_absent ? nullptr : out[rank].data(),
            .root = root,
            .rows = rows,
            .splits = splits,
            .format = request.format,
            .errors = is_absent || errors.empty() ? nullptr : errors[rank].data(),
            .rounding = rounding};
  }

  // Whether `rank` got what it should, and nothing else was written.
  bool is_right(int rank) const {
    Bytes wanted =
        absent.contains(rank) ? Bytes(expected[rank].size(), kUntouched) : expected[rank];
    wanted.resize(wanted.size() + kMargin, kUntouched);
    return out[rank] == wanted;
  }
};

inline Bytes random_elements(Dtype dtype, std::size_t count, std::mt19937& random) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(random() % 2001) / 64.0 - 15.0;
    const auto put = [&](auto stored) {
      std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
    };
    if (dtype == Dtype::kFloat32) {
      put(static_cast<float>(value * 1.1));
    } else if (dtype == Dtype::kFloat64) {
      put(value * 1.1);
    } else if (size_of(dtype) == 2) {
      put(static_cast<std::uint16_t>(0x3c00 + random() % 0x300));  // small half or bfloat16 numbers
    } else {
      const std::uint64_t any = random();
      std::memcpy(bytes.data() + i * size_of(dtype), &any, size_of(dtype));
    }
  }
  return bytes;
}

// A random pattern, repeated: cheap, and of no period that cells or views have.
inline Bytes random_values(Dtype dtype, std::size_t count, std::mt19937& random) {
  const Bytes pattern = random_elements(dtype, std::min<std::size_t>(count, 1021), random);
  Bytes bytes(count * size_of(dtype));
  for (std::size_t at = 0; at < bytes.size(); at += pattern.size()) {
    std::memcpy(bytes.data() + at, pattern.data(), std::min(pattern.size(), bytes.size() - at));
  }
  return bytes;
}

inline Tensor tensor_of(Kind kind, Dtype dtype, std::int64_t dim0, std::int64_t width, int size) {
  Tensor tensor;
  tensor.request.kind = kind;
  tensor.request.dtype = dtype;
  tensor.request.dims_count = 2;
  tensor.request.dims = {dim0, width};
  tensor.in.resize(size);
  tensor.expected.resize(size);
  return tensor;
}

// What the kernels give for all inputs, with zeros for the absent ranks.
inline Bytes reduced(const Tensor& tensor) {
  std::vector<Bytes> inputs = tensor.in;
  for (const int rank : tensor.absent)
    std::fill(inputs[rank].begin(), inputs[rank].end(), std::byte{});
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes result(inputs[0].size());
  reduce({.dtype = tensor.request.dtype,
          .op = tensor.request.op,
          .prescale = tensor.request.prescale,
          .postscale = tensor.request.postscale,
          .divisor = tensor.size()},
         sources, result.data(), nullptr, result.size() / size_of(tensor.request.dtype));
  return result;
}

inline Tensor allreduce_tensor(int size, Dtype dtype, ReduceOp op, std::size_t count,
                               std::set<int> absent, std::mt19937& random) {
  Tensor tensor = tensor_of(Kind::kAllreduce, dtype, static_cast<std::int64_t>(count), 1, size);
  tensor.request.op = op;
  tensor.absent = std::move(absent);
  for (Bytes& bytes : tensor.in) bytes = random_values(dtype, count, random);
  for (Bytes& bytes : tensor.expected) bytes = reduced(tensor);
  return tensor;
}

// Every rank has non-zero values in elements of its own only, so the Adasum is exactly the sum.
inline Tensor orthogonal_adasum_tensor(int size, Dtype dtype, std::size_t count,
                                       std::set<int> absent, std::mt19937& random) {
  Tensor tensor = allreduce_tensor(size, dtype, ReduceOp::kSum, count, absent, random);
  const std::size_t element_bytes = size_of(dtype);
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      if (i % static_cast<std::size_t>(size) == static_cast<std::size_t>(rank)) continue;
      std::memset(tensor.in[rank].data() + i * element_bytes, 0, element_bytes);
    }
  }
  for (Bytes& bytes : tensor.expected) bytes = reduced(tensor);
  tensor.request.op = ReduceOp::kAdasum;
  return tensor;
}

inline Tensor reducescatter_tensor(int size, Dtype dtype, ReduceOp op, std::int64_t dim0,
                                   std::int64_t width, std::set<int> absent, std::mt19937& random) {
  Tensor tensor = tensor_of(Kind::kReducescatter, dtype, dim0, width, size);
  tensor.request.op = op;
  tensor.absent = std::move(absent);
  const auto count = static_cast<std::size_t>(dim0 * width);
  for (Bytes& bytes : tensor.in) bytes = random_values(dtype, count, random);
  const Bytes result = reduced(tensor);
  const auto row_bytes =
      static_cast<std::ptrdiff_t>(width) * static_cast<std::ptrdiff_t>(size_of(dtype));
  auto begin = result.begin();
  for (int rank = 0; rank < size; ++rank) {
    const auto end = begin + (dim0 / size + (rank < dim0 % size ? 1 : 0)) * row_bytes;
    tensor.expected[rank].assign(begin, end);
    begin = end;
  }
  return tensor;
}

inline Tensor broadcast_tensor(int size, int root, std::size_t size_bytes, std::mt19937& random) {
  Tensor tensor =
      tensor_of(Kind::kBroadcast, Dtype::kUint8, static_cast<std::int64_t>(size_bytes), 1, size);
  tensor.root = root;
  tensor.request.root = 1000 + root;  // a world rank, which the backend has no use for
  for (Bytes& bytes : tensor.in) bytes = random_values(Dtype::kUint8, size_bytes, random);
  for (Bytes& bytes : tensor.expected) bytes = tensor.in[root];
  return tensor;
}

inline Tensor allgather_tensor(const std::vector<std::int64_t>& rows, Dtype dtype,
                               std::int64_t width, std::mt19937& random) {
  const int size = static_cast<int>(rows.size());
  Tensor tensor = tensor_of(Kind::kAllgather, dtype, -1, width, size);
  tensor.rows = rows;
  Bytes all;
  for (int rank = 0; rank < size; ++rank) {
    tensor.in[rank] = random_values(dtype, static_cast<std::size_t>(rows[rank] * width), random);
    all.insert(all.end(), tensor.in[rank].begin(), tensor.in[rank].end());
  }
  for (Bytes& bytes : tensor.expected) bytes = all;
  return tensor;
}

// `splits[s * size + d]`: rows that s gives to d.
inline Tensor alltoall_tensor(int size, const std::vector<std::int64_t>& splits, Dtype dtype,
                              std::int64_t width, std::mt19937& random) {
  Tensor tensor = tensor_of(Kind::kAlltoall, dtype, -1, width, size);
  tensor.splits = splits;
  for (int giver = 0; giver < size; ++giver) {
    for (int taker = 0; taker < size; ++taker) {
      const auto count = static_cast<std::size_t>(splits[giver * size + taker] * width);
      const Bytes part = random_values(dtype, count, random);
      tensor.in[giver].insert(tensor.in[giver].end(), part.begin(), part.end());
      tensor.expected[taker].insert(tensor.expected[taker].end(), part.begin(), part.end());
    }
  }
  return tensor;
}

}  // namespace hvd::test
