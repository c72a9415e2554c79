// One collective in MXNet's engine. It begins when MXNet reports that its arrays are ready, and
// ends when our engine is done. No thread waits meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/engine_port.h"
#include "bindings/mxnet/api.h"
#include "bindings/mxnet/results.h"

extern "C" {

// The arguments from Python; src/horovod/mxnet/plugin.py has the same declaration. Valid during the
// call only.
struct horovod_mxnet_call {
  const char* name;  // the full name
  std::int32_t kind;
  std::int32_t op;
  std::int32_t root;
  std::int32_t process_set;
  double prescale;
  double postscale;
  std::int32_t priority;
  std::int32_t is_group;
  std::int32_t link_format;
  std::int32_t count;  // of tensors
  std::int32_t splits_count;
  std::int32_t orders_count;
  const std::int32_t* dtypes;
  hvd::mxnet::Array* inputs;
  hvd::mxnet::Array* outputs;  // null where the engine allocates the results
  const std::int64_t* splits;
  hvd::mxnet::Array* orders;  // arrays that count as written, for the sake of order
};

}  // extern "C"

namespace hvd::mxnet {

// A handle of our own for an array, so that it outlives the caller's.
class OwnArray {
 public:
  OwnArray(const Api& api, Array array) : api_(&api) { api.check(api.alias(array, &array_)); }
  explicit OwnArray(const Api& api) : api_(&api) { api.check(api.create_none(&array_)); }
  OwnArray(OwnArray&& other) noexcept : api_(other.api_), array_(other.array_) {
    other.array_ = nullptr;
  }
  OwnArray(const OwnArray&) = delete;
  OwnArray& operator=(const OwnArray&) = delete;
  ~OwnArray() {
    if (array_ != nullptr) api_->free(array_);
  }

  Array get() const { return array_; }

 private:
  const Api* api_;
  Array array_ = nullptr;
};

class Job {
 public:
  // Throws std::runtime_error if MXNet refuses something.
  Job(const Api& api, EnginePort& port, const horovod_mxnet_call& call);

  // For results that the engine allocates; null if there are none.
  const std::shared_ptr<Results>& results() const { return results_; }
  // Gives the job to MXNet's engine; throws like the constructor.
  static void push(const std::shared_ptr<Job>& job, const horovod_mxnet_call& call);

 private:
  void read_requests(const horovod_mxnet_call& call);
  // The addresses of the tensors, which are ready now.
  std::vector<Tensor> locate();
  static void run(const std::shared_ptr<Job>& job, const OnComplete& done);
  void finish(EnginePort::Result result, const OnComplete& done);
  void fail(const std::string& text, const OnComplete& done);

  const Api& api_;
  EnginePort& port_;
  const std::string name_;
  const int process_set_;
  std::vector<OwnArray> inputs_;
  std::vector<OwnArray> outputs_;
  std::vector<OwnArray> reordered_;
  std::vector<Request> requests_;
  std::vector<std::int64_t> splits_;
  std::shared_ptr<Results> results_;
};

}  // namespace hvd::mxnet
