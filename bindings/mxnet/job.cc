#include "bindings/mxnet/job.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "bindings/error_names.h"
#include "bindings/submissions.h"

namespace hvd::mxnet {

namespace {

// A value of mxnet::FnProperty: such operations have their own threads, so computations do not
// delay them.
constexpr int kCpuPrioritized = 3;

std::byte* address_of(const Api& api, Array array) {
  void* data = nullptr;
  api.check(api.data(array, &data));
  return hvd::address_of(static_cast<std::byte*>(data));
}

bool contains(const std::vector<Array>& arrays, Array array) {
  return std::ranges::any_of(arrays,
                             [array](Array other) { return memory_of(other) == memory_of(array); });
}

// MXNet does not accept the same memory twice, and views share the memory of their arrays.
std::vector<Array> distinct(std::span<const Array> arrays, const std::vector<Array>& others) {
  std::vector<Array> found;
  for (const Array array : arrays) {
    if (!contains(found, array) && !contains(others, array)) found.push_back(array);
  }
  return found;
}

std::span<const Array> list(const Array* arrays, std::int32_t count) {
  return {arrays, arrays == nullptr ? 0 : static_cast<std::size_t>(count)};
}

std::vector<Dtype> result_dtypes(const std::vector<Request>& requests) {
  std::vector<Dtype> dtypes;
  for (const Request& request : requests) dtypes.push_back(request.dtype);
  if (collective_of(requests.front().kind).has_splits()) dtypes.push_back(Dtype::kInt32);
  return dtypes;
}

}  // namespace

Job::Job(const Api& api, EnginePort& port, const horovod_mxnet_call& call)
    : api_(api),
      port_(port),
      name_(call.name),
      process_set_(call.process_set),
      splits_(call.splits, call.splits + call.splits_count) {
  for (const Array array : list(call.inputs, call.count)) inputs_.emplace_back(api, array);
  for (const Array array : list(call.outputs, call.count)) outputs_.emplace_back(api, array);
  read_requests(call);
  if (outputs_.empty()) results_ = std::make_shared<Results>(result_dtypes(requests_));
}

void Job::read_requests(const horovod_mxnet_call& call) {
  if (call.kind < 0 || call.kind >= kKindCount) {
    throw std::runtime_error("'" + name_ + "': there is no collective number " +
                             std::to_string(call.kind));
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    int dims_count = 0;
    const std::int64_t* dims = nullptr;
    api_.check(api_.shape(inputs_[i].get(), &dims_count, &dims));
    if (dims_count < 0 || dims_count > Request::kMaxDims) {
      throw std::runtime_error("'" + name_ +
                               "': the array's shape is not known, or has more than " +
                               std::to_string(Request::kMaxDims) + " dimensions");
    }
    Request& request = requests_.emplace_back();
    request.kind = static_cast<Kind>(call.kind);
    request.dtype = static_cast<Dtype>(call.dtypes[i]);
    request.op = static_cast<ReduceOp>(call.op);
    request.is_grouped = call.is_group != 0;
    request.root = call.root;
    request.prescale = call.prescale;
    request.postscale = call.postscale;
    request.format = static_cast<LinkFormat>(call.link_format);
    request.dims_count = dims_count;
    std::copy_n(dims, dims_count, request.dims.begin());
  }
}

void Job::push(const std::shared_ptr<Job>& job, const horovod_mxnet_call& call) {
  std::vector<Array> all_written(call.orders, call.orders + call.orders_count);
  std::ranges::copy(list(call.outputs, call.count), std::back_inserter(all_written));
  const std::vector<Array> written = distinct(all_written, {});
  const std::vector<Array> read = distinct(list(call.inputs, call.count), written);
  constexpr dlpack::Device kCpu{.type = dlpack::kCpu, .id = 0};
  // MXNet owns the parameter from here on, also when it refuses the call.
  auto owner = std::make_unique<std::shared_ptr<Job>>(job);
  job->api_.check(job->api_.push_async(
      [](void*, void* on_complete, void* param) {
        run(*static_cast<std::shared_ptr<Job>*>(param), *static_cast<OnComplete*>(on_complete));
      },
      owner.release(), [](void* param) { delete static_cast<std::shared_ptr<Job>*>(param); }, &kCpu,
      read.data(), static_cast<int>(read.size()), written.data(), static_cast<int>(written.size()),
      &kCpuPrioritized, call.priority, "Horovod", false));
}

std::vector<Tensor> Job::locate() {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    Array in = inputs_[i].get();
    const bool is_in_place = !outputs_.empty() && memory_of(in) == memory_of(outputs_[i].get());
    if (is_in_place && api_.reorder_memory != nullptr) {
      api_.reorder_memory(memory_of(in));
    } else if (api_.construct_reordered != nullptr) {
      // Other operations may read the array at the same time, so it is copied.
      in = reordered_.emplace_back(api_).get();
      api_.construct_reordered(in, inputs_[i].get());
    }
    std::byte* address = address_of(api_, in);
    std::byte* out = is_in_place        ? address
                     : outputs_.empty() ? nullptr
                                        : address_of(api_, outputs_[i].get());
    tensors.push_back({.in = address, .out = out});
  }
  return tensors;
}

void Job::run(const std::shared_ptr<Job>& job, const OnComplete& done) {
  std::vector<Tensor> tensors;
  try {
    tensors = job->locate();
  } catch (const std::exception& error) {
    job->fail(error.what(), done);
    return;
  }
  const Submission submission{
      .name = job->name_, .requests = job->requests_, .tensors = tensors, .splits = job->splits_};
  job->port_.start(job->process_set_, {&submission, 1}, [job, done](EnginePort::Result result) {
    job->finish(std::move(result), done);
  });
}

void Job::finish(EnginePort::Result result, const OnComplete& done) {
  if (result.error) {
    // MXNet raises a text that begins with the name of a Python exception as that exception.
    const bool is_refusal = result.error->code() == ErrorCode::kInvalidArgument;
    fail(is_refusal ? result.error->what() : text_for_python(*result.error), done);
    return;
  }
  if (results_ != nullptr) results_->put(std::move(result.outputs));
  done(nullptr);
}

void Job::fail(const std::string& text, const OnComplete& done) {
  if (results_ != nullptr) results_->fail(text);
  const std::runtime_error error(text);
  done(&error);
}

}  // namespace hvd::mxnet
