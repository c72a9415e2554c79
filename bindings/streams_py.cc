#include "bindings/streams_py.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

void make_plane(DevicePlane* self, std::shared_ptr<GpuAccess> gpus, const std::vector<int>& routes,
                const std::vector<bool>& is_hierarchical, int streams, int default_device,
                double timeout_s, std::uint64_t nccl_host, bool may_share_gpu) {
  new (self) DevicePlane{.gpus = std::move(gpus),
                         .config = {.streams = streams,
                                    .default_device = default_device,
                                    .timeout_s = timeout_s,
                                    .nccl_host = nccl_host,
                                    .may_share_gpu = may_share_gpu}};
  if (routes.size() != kKindCount || is_hierarchical.size() != kKindCount) {
    throw nb::value_error("a route for each kind");
  }
  std::ranges::transform(routes, self->config.routes.begin(),
                         [](int route) { return static_cast<DeviceRoute>(route); });
  std::ranges::copy(is_hierarchical, self->config.is_hierarchical.begin());
}

}  // namespace

StreamDependency::CurrentStream PythonStreams::current_stream() const {
  return [function = function_](int device) -> cuda::Stream {
    return reinterpret_cast<cuda::Stream>(nb::cast<std::uintptr_t>(function(device)));
  };
}

StreamDependencyPtr depart(const Engine& engine, std::span<const Tensor> tensors,
                           const Streams* streams) {
  const auto is_near = [](const Tensor& tensor) { return tensor.device == kHostDevice; };
  if (std::ranges::all_of(tensors, is_near)) return nullptr;
  if (engine.gpus() == nullptr || streams == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the tensor is on a GPU, and CUDA's driver (libcuda.so.1) was not found; move it "
                "with .cpu() first");
  }
  auto dependency =
      std::make_shared<StreamDependency>(engine.gpus()->open(), streams->current_stream());
  for (const Tensor& tensor : tensors) {
    if (!is_near(tensor)) dependency->depart_from(tensor.device);
  }
  return dependency;
}

void arrive(const HandleTable::Result& result) {
  for (const StreamDependencyPtr& dependency : result.dependencies) dependency->arrive();
}

void bind_devices(nb::module_& module) {
  nb::class_<Streams>(module, "Streams",
                      "Says on which stream of a GPU a framework's next work goes.");
  nb::class_<PythonStreams, Streams>(module, "PythonStreams")
      .def(nb::init<nb::typed<nb::callable, std::uintptr_t(int)>>(), "function"_a);
  nb::class_<GpuAccess>(
      module, "GpuAccess",
      "The way to CUDA's driver and NCCL, which are opened when they are first needed.")
      .def(nb::init<std::string, std::vector<std::string>>(), "cuda_path"_a, "nccl_paths"_a)
      .def("device_count", [](GpuAccess& gpus) { return gpus.open()->driver().device_count(); })
      .def("nccl_version", [](GpuAccess& gpus) {
        const std::shared_ptr<Gpu> gpu = gpus.open();
        return gpu->nccl() == nullptr ? 0 : gpu->nccl()->version();
      });
  nb::class_<DevicePlane>(
      module, "DevicePlane",
      "What an engine is told about GPU memory; lists are by kind, see ``horovod.core.gpus``.")
      .def("__init__", &make_plane, "gpus"_a, "routes"_a, "is_hierarchical"_a, "streams"_a,
           "default_device"_a, "timeout_s"_a, "nccl_host"_a, "may_share_gpu"_a);
}

}  // namespace hvd
