#include <doctest/doctest.h>

#include "device_world.h"

namespace hvd::test {
namespace {

TEST_CASE("a library that is not there, or is another one, is an error with the loader's text") {
  CHECK(error_of([] { CudaDriver("libno_such_cuda.so.1"); }).find("libno_such_cuda.so.1") !=
        std::string::npos);
  CHECK(error_of([] { CudaDriver("libc.so.6"); }) ==
        "libc.so.6 has no function cuInit; it is too old");
}

TEST_CASE("without a GPU there is no driver") {
  stand_in_reset();
  stand_in_set_gpus(0);
  CHECK(error_of([] { CudaDriver(CUDA_STAND_IN); }).find("finds no GPU") != std::string::npos);
  stand_in_set_gpus(2);
  CHECK(CudaDriver(CUDA_STAND_IN).device_count() == 2);
}

TEST_CASE("errors have CUDA's text") {
  stand_in_reset();
  const CudaDriver driver(CUDA_STAND_IN);
  stand_in_fail("cuStreamCreateWithPriority", 2, 0);
  CHECK(error_of([&] { CudaStream(driver, 0); }) ==
        "cuStreamCreateWithPriority: CUDA_ERROR_OUT_OF_MEMORY, out of memory");
  CHECK(error_of([&] { CudaStream(driver, 77); }).find("there is no GPU 77") == 0);
  stand_in_reset();
}

TEST_CASE("a stream that is held back goes on when the event is reached") {
  DeviceWorld world(2);
  const DeviceRank& busy = world.rank(0);
  const DeviceRank& other = world.rank(1);
  BusyStream work(busy);
  const CudaEventPtr event = busy.stream->mark();
  {
    const CurrentDevice current(other.gpu->driver(), other.device);
    event->hold_back(other.stream->get());
  }
  const CudaEventPtr after = other.stream->mark();
  CHECK(!event->is_reached());
  CHECK(!after->is_reached());
  work.release();
  other.synchronize();
  CHECK(after->is_reached());
}

TEST_CASE("NCCL that is not there is a text, not an error") {
  const Gpu none(CUDA_STAND_IN, {});
  CHECK(none.nccl() == nullptr);
  CHECK(none.nccl_problem() == "NCCL is not installed");
  const Gpu wrong(CUDA_STAND_IN, {"libc.so.6"});
  CHECK(wrong.nccl() == nullptr);
  CHECK(wrong.nccl_problem().find("has no function nccl") != std::string::npos);
  const Gpu nowhere(CUDA_STAND_IN, {"/nowhere/libnccl.so.2"});
  CHECK(nowhere.nccl_problem().find("/nowhere/libnccl.so.2") != std::string::npos);
  const Gpu second(CUDA_STAND_IN, {"/nowhere/libnccl.so.2", NCCL_STAND_IN});
  CHECK(second.nccl()->version() == 23203);
  CHECK(second.nccl_problem().empty());
}

TEST_CASE("a stream that is captured into a graph takes no collectives") {
  DeviceWorld world(1);
  const DeviceRank& rank = world.rank(0);
  stand_in_set_capturing(rank.stream->get(), 1);
  CHECK(error_of([&] { rank.depart(); }).find("captured into a CUDA graph") != std::string::npos);
}

}  // namespace
}  // namespace hvd::test
