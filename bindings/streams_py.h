// The streams of GPUs on which a framework works, for operations on its tensors.
//
// A StreamDependency says what waits for a stream and what a stream waits for. These functions
// begin and end it for calls from Python. All under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "runtime/engine.h"

namespace hvd {

// Knows on which stream a framework's next work goes.
class Streams {
 public:
  virtual ~Streams() = default;
  virtual StreamDependency::CurrentStream current_stream() const = 0;
};

// A Python function that returns the address of a device's current stream. It is never released:
// there is one for a framework, and engine threads, which must not touch Python objects, destroy
// references to it.
class PythonStreams final : public Streams {
 public:
  explicit PythonStreams(nanobind::callable function) : function_(function.release()) {}
  StreamDependency::CurrentStream current_stream() const override;

 private:
  const nanobind::handle function_;
};

// The dependency of tensors that are on GPUs; null where all are in host memory. Throws Error where
// GPUs cannot be reached, or a stream's work cannot be ordered. `streams`: null for none.
StreamDependencyPtr depart(const Engine& engine, std::span<const Tensor> tensors,
                           const Streams* streams);
// Holds back the framework's streams until the GPUs are done.
void arrive(const HandleTable::Result& result);

// The access to GPUs, for Python.
void bind_devices(nanobind::module_& module);

}  // namespace hvd
