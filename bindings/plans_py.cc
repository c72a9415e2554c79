// How the engine cuts its work, for predictions: horovod.simulate.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "collective/cluster_cut.h"
#include "fusion/planner.h"
#include "transport/peers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

// How many of the first gradients, all ready, are one bucket.
std::size_t bucket_length(const std::vector<std::size_t>& sizes_bytes, std::size_t threshold) {
  BucketPlan plan(threshold);
  std::size_t count = 0;
  for (const std::size_t size_bytes : sizes_bytes) {
    if (!plan.accepts({.kind = Kind::kAllreduce, .size_bytes = size_bytes})) break;
    ++count;
  }
  return count;
}

ClusterCut cluster_cut(std::size_t size_bytes, int channels, int hosts) {
  if (channels < 1 || hosts < 1) throw nb::value_error("channels and hosts are 1 or more");
  const std::size_t most = staging_sizes(channels).staging_cell_bytes;
  return cut_for_cluster(size_bytes, channels, hosts, most);
}

}  // namespace

void bind_plans(nb::module_& module) {
  nb::class_<ClusterCut>(module, "ClusterCut", "How an allreduce between hosts is cut.")
      .def_ro("one_step", &ClusterCut::one_step)
      .def_ro("chunk_bytes", &ClusterCut::chunk_bytes)
      .def_ro("chunks", &ClusterCut::chunks);
  module.def("cluster_cut", &cluster_cut, "size_bytes"_a, "channels"_a, "hosts"_a);
  module.def("bucket_length", &bucket_length, "sizes_bytes"_a, "threshold"_a);
}

}  // namespace hvd
