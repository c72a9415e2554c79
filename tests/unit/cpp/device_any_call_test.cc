// Any call of CUDA or NCCL may fail: then results are right all the same, or ranks get an error,
// one of which names the call, and no wait is without an end.
#include <doctest/doctest.h>

#include <numeric>

#include "caught_errors.h"
#include "contains.h"
#include "device_world.h"

namespace hvd::test {
namespace {

// A group of averages, an allgather of different rows, and Adasum.
std::vector<Operation> operations_of(int rank, const std::vector<DeviceFloats>& tensors) {
  Operation group = on_device_in_place("group", tensors[0]);
  group.requests.push_back(group.requests.front());
  group.tensors.push_back(
      {.in = tensors[1].data(), .out = tensors[1].data(), .device = tensors[1].device()});
  for (Request& request : group.requests) {
    request.is_grouped = true;
    request.op = ReduceOp::kAverage;
  }
  Operation rows = on_device("rows", Kind::kAllgather, tensors[2], nullptr, {rank + 1});
  Operation adasum = on_device_in_place("adasum", tensors[3]);
  adasum.requests[0].op = ReduceOp::kAdasum;
  return {group, rows, adasum};
}

void take_part(int rank, Engine& engine, DeviceRank& mine) {
  const auto value = static_cast<float>(rank + 1);
  std::vector<DeviceFloats> tensors;
  for (const int count : {3, 3, rank + 1, 2}) {
    tensors.push_back(mine.floats(std::vector(static_cast<std::size_t>(count), value)));
  }
  std::vector<Output> gathered;
  for (const Operation& operation : operations_of(rank, tensors)) {
    auto outputs = finish_on_device(engine, submit(engine, mine, operation));
    if (!outputs.empty()) gathered = std::move(outputs);
  }
  mine.synchronize();
  if (!engine.confirm(kPatience)) throw std::runtime_error("the confirmation did not end");
  CHECK(tensors[0].values() == std::vector(3, 1.5F));
  CHECK(tensors[1].values() == std::vector(3, 1.5F));
  CHECK(floats_of(gathered.at(0)) == std::vector{1.0F, 2.0F, 2.0F});
}

// The errors of the ranks, joined. A rank with an error leaves, as a program does.
std::string errors_of(DeviceWorld& world) {
  std::vector<std::string> errors(2);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    auto& error = errors[static_cast<std::size_t>(rank)];
    error = error_of([&] { take_part(rank, engine, mine); });
    if (!error.empty()) engine.shutdown();
  });
  return errors[0] + "\n" + errors[1];
}

// Whether that many calls were made.
bool check_failure_of(const DeviceOptions& way, long number) {
  const CaughtErrors quiet;
  DeviceWorld world(2, way);
  stand_in_fail_once(number);
  const std::string errors = errors_of(world);
  const char* const failed = stand_in_failed();
  if (failed == nullptr) {
    CHECK(errors == "\n");
    return false;
  }
  // An earlier call has failed, which NCCL tells later.
  const bool is_late = std::string(failed) == "ncclCommGetAsyncError";
  const bool is_named = contains(errors, is_late ? "NCCL: " : failed);
  CHECK_MESSAGE((errors == "\n" || is_named), number, " ", failed, ": ", errors);
  return true;
}

TEST_CASE("any call may fail, each way") {
  const char* const all = std::getenv("HOROVOD_TEST_EVERY_CALL");
  const long stride = all == nullptr ? 61 : 1;
  for (const DeviceOptions& way : {DeviceOptions{}, DeviceOptions{.route = DeviceRoute::kHost},
                                   DeviceOptions{.has_own_gpus = false}}) {
    for (long number = 0; check_failure_of(way, number); number += stride) {
    }
  }
}

}  // namespace
}  // namespace hvd::test
