#include "bindings/mxnet/results.h"

#include <memory>
#include <utility>

namespace hvd::mxnet {

namespace {

dlpack::TypeCode type_code_of(Dtype dtype) {
  if (is_float(dtype)) return dlpack::kFloat;
  return dtype == Dtype::kUint8 ? dlpack::kUint : dlpack::kInt;
}

// The engine's memory on its way through MXNet.
struct Lent {
  Lent(Output output_, Dtype dtype)
      : output(std::move(output_)),
        managed{.tensor = {.data = output.bytes.get(),
                           .device = {.type = dlpack::kCpu, .id = 0},
                           .dims_count = static_cast<std::int32_t>(output.shape.size()),
                           .dtype = {.code = type_code_of(dtype),
                                     .bits = static_cast<std::uint8_t>(8 * size_of(dtype)),
                                     .lanes = 1},
                           .shape = output.shape.data(),
                           .strides = nullptr,
                           .byte_offset = 0},
                .owner = this,
                .deleter = [](ManagedTensor* lent) { delete static_cast<Lent*>(lent->owner); }} {}

  Output output;
  ManagedTensor managed;
};

}  // namespace

void Results::put(std::vector<Output> outputs) {
  const std::lock_guard guard(mutex_);
  outputs_ = std::move(outputs);
}

void Results::fail(const std::string& text) {
  const std::lock_guard guard(mutex_);
  failure_ = text;
}

Output Results::output(std::size_t index) {
  const std::lock_guard guard(mutex_);
  if (index >= outputs_.size() || outputs_[index].bytes == nullptr) {
    throw std::runtime_error(failure_);
  }
  return std::move(outputs_[index]);
}

Array Results::take(const Api& api, std::size_t index) {
  auto lent = std::make_unique<Lent>(output(index), dtypes_.at(index));
  Array array = nullptr;
  api.check(api.from_dlpack(&lent->managed, false, &array));
  static_cast<void>(lent.release());  // MXNet calls the deleter
  return array;
}

}  // namespace hvd::mxnet
