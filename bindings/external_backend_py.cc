// A Python object as a data plane. Each call takes the GIL once. Only the engine's background
// thread makes these calls, so no signal handler runs during a call. An exception ends the world.
// Threads that wait for a result get its text.
#include "bindings/external_backend_py.h"

#include <nanobind/stl/string.h>

#include <array>
#include <utility>

#include "core/error.h"

namespace nb = nanobind;

namespace hvd {

namespace {

constexpr std::array kReductions{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

std::uintptr_t address_of(const std::byte* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

nb::list list_of(std::span<const std::size_t> sizes) {
  nb::list list;
  for (const std::size_t size : sizes) list.append(size);
  return list;
}

class PythonDataPlane final : public DataPlane {
 public:
  explicit PythonDataPlane(nb::object plane)
      : plane_(std::move(plane)), name_(nb::cast<std::string>(plane_.attr("name"))) {
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (const ReduceOp op : kReductions) {
        can_reduce_[index_of(static_cast<Dtype>(dtype), op)] =
            nb::cast<bool>(plane_.attr("reduces")(dtype, static_cast<int>(op)));
      }
    }
  }

  ~PythonDataPlane() override {
    const nb::gil_scoped_acquire gil;
    plane_.reset();
  }

  bool reduces(Dtype dtype, ReduceOp op) const override { return can_reduce_[index_of(dtype, op)]; }

  void allreduce(std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) override {
    call("allreduce", address_of(data), count, static_cast<int>(dtype), static_cast<int>(op));
  }

  void broadcast(std::byte* data, std::size_t size_bytes, int root) override {
    call("broadcast", address_of(data), size_bytes, root);
  }

  void allgather(const std::byte* in, std::byte* out, std::span<const std::size_t> sizes) override {
    call("allgather", address_of(in), address_of(out), sizes);
  }

  void alltoall(const std::byte* in, std::span<const std::size_t> in_sizes, std::byte* out,
                std::span<const std::size_t> out_sizes) override {
    call("alltoall", address_of(in), in_sizes, address_of(out), out_sizes);
  }

  void barrier() override { call("barrier"); }

  bool test() override { return call<bool>("test"); }

 private:
  static std::size_t index_of(Dtype dtype, ReduceOp op) {
    return static_cast<std::size_t>(dtype) * 8 + static_cast<std::size_t>(op);
  }

  static nb::object argument(std::span<const std::size_t> sizes) { return list_of(sizes); }
  template <typename Value>
  static Value argument(Value value) {
    return value;
  }

  template <typename Result = void, typename... Arguments>
  Result call(const char* method, Arguments... arguments) {
    const nb::gil_scoped_acquire gil;
    try {
      return nb::cast<Result>(plane_.attr(method)(argument(arguments)...));
    } catch (const nb::python_error& error) {
      throw Error(ErrorCode::kSystem, name_ + ": " + text_of(error));
    }
  }

  static std::string text_of(const nb::python_error& error) {
    const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
    return type + ": " + nb::cast<std::string>(nb::str(error.value()));
  }

  nb::object plane_;
  const std::string name_;
  std::array<bool, kDtypeCount * 8> can_reduce_{};
};

}  // namespace

std::shared_ptr<DataPlane> data_plane_of(const nb::object& plane) {
  if (plane.is_none()) return nullptr;
  return std::make_shared<PythonDataPlane>(plane);
}

}  // namespace hvd
