// A call of JAX's plugin as XLA makes it for a CUDA GPU, on ranks that are threads.
#include <doctest/doctest.h>

#include <deque>

#include "bindings/jax/gpu_call.h"
#include "test_port.h"

// XLA's side. Its own types are opaque, so the tests may say what they are.
struct XLA_FFI_ExecutionContext {
  void* stream;
};
struct XLA_FFI_Error {
  std::string text;
};

namespace hvd::test {
namespace {

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message};
}

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}

// A call with one argument and one result, of floats.
class XlaCall {
 public:
  XlaCall(DeviceRank& rank, Kind kind, const DeviceFloats& in, const DeviceFloats& out,
          std::int64_t out_count)
      : context_{rank.stream->get()}, ballast_(rank.floats({0.0F})) {
    api_.Error_Create = &create_error;
    api_.Stream_Get = &get_stream;
    in_dims_ = static_cast<std::int64_t>(in.values().size());
    out_dims_ = out_count;
    in_ = buffer(in, &in_dims_);
    out_ = buffer(out, &out_dims_);
    last_ = buffer(ballast_, &one_);
    args_ = {&in_, &last_};
    rets_ = {&out_};
    add_integer("kind", static_cast<std::int64_t>(kind));
    add_integer("op", static_cast<std::int64_t>(ReduceOp::kSum));
    add_number("prescale_factor", 1.0);
    add_number("postscale_factor", 1.0);
    add_text("names", "x");
  }

  void zero_result() { add_integer("is_zeroed", 1); }

  // The error, or nothing.
  std::string run(EnginePort& port) {
    XLA_FFI_CallFrame frame{};
    frame.api = &api_;
    frame.ctx = &context_;
    frame.args = {.struct_size = sizeof(XLA_FFI_Args),
                  .extension_start = nullptr,
                  .size = 2,
                  .types = nullptr,
                  .args = args_.data()};
    frame.rets = {.struct_size = sizeof(XLA_FFI_Rets),
                  .extension_start = nullptr,
                  .size = 1,
                  .types = nullptr,
                  .rets = rets_.data()};
    frame.attrs = {.struct_size = sizeof(XLA_FFI_Attrs),
                   .extension_start = nullptr,
                   .size = static_cast<std::int64_t>(values_.size()),
                   .types = types_.data(),
                   .names = names_.data(),
                   .attrs = values_.data()};
    const std::unique_ptr<XLA_FFI_Error> error(jax::run_on_gpu(port, &frame));
    return error == nullptr ? "" : error->text;
  }

 private:
  static XLA_FFI_Buffer buffer(const DeviceFloats& floats, std::int64_t* dims) {
    return {.struct_size = sizeof(XLA_FFI_Buffer),
            .extension_start = nullptr,
            .dtype = XLA_FFI_DataType_F32,
            .data = floats.data(),
            .rank = 1,
            .dims = dims};
  }
  void add(const char* name, XLA_FFI_AttrType type, void* value) {
    spans_.push_back({name, std::char_traits<char>::length(name)});
    names_.push_back(&spans_.back());
    types_.push_back(type);
    values_.push_back(value);
  }
  void add_integer(const char* name, std::int64_t value) {
    integers_.push_back(value);
    scalars_.push_back({XLA_FFI_DataType_S64, &integers_.back()});
    add(name, XLA_FFI_AttrType_SCALAR, &scalars_.back());
  }
  void add_number(const char* name, double value) {
    numbers_.push_back(value);
    scalars_.push_back({XLA_FFI_DataType_F64, &numbers_.back()});
    add(name, XLA_FFI_AttrType_SCALAR, &scalars_.back());
  }
  void add_text(const char* name, const char* value) {
    spans_.push_back({value, std::char_traits<char>::length(value)});
    add(name, XLA_FFI_AttrType_STRING, &spans_.back());
  }

  XLA_FFI_Api api_{};
  XLA_FFI_ExecutionContext context_;
  DeviceFloats ballast_;
  std::int64_t in_dims_ = 0;
  std::int64_t out_dims_ = 0;
  std::int64_t one_ = 1;
  XLA_FFI_Buffer in_{};
  XLA_FFI_Buffer out_{};
  XLA_FFI_Buffer last_{};
  std::vector<void*> args_;
  std::vector<void*> rets_;
  std::deque<std::int64_t> integers_;
  std::deque<double> numbers_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_ByteSpan> spans_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
};

TEST_CASE("a program on a GPU: the result comes after XLA's stream, in it") {
  DeviceWorld world(2);
  std::vector<std::unique_ptr<BusyStream>> busy;
  std::vector<DeviceFloats> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    busy.push_back(std::make_unique<BusyStream>(world.rank(rank)));
    tensors.push_back(world.rank(rank).floats({3.0F}));
  }
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    TestPort port(engine, mine);
    const DeviceFloats& tensor = tensors[static_cast<std::size_t>(rank)];
    XlaCall call(mine, Kind::kAllreduce, tensor, tensor, 1);
    CHECK(call.run(port) == "");
    CHECK(tensor.values() == std::vector{3.0F});  // this thread did not wait for the GPU
  });
  for (const auto& each : busy) each->release();
  for (int rank = 0; rank < 2; ++rank) {
    world.rank(rank).synchronize();
    CHECK(tensors[static_cast<std::size_t>(rank)].values() == std::vector{6.0F});
  }
}

TEST_CASE("results that the engine allocates are copied in XLA's stream") {
  for (const bool is_shared : {false, true}) {
    DeviceWorld world(2, {.has_own_gpus = !is_shared});
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      TestPort port(engine, mine);
      const DeviceFloats in = mine.floats({static_cast<float>(rank)});
      const DeviceFloats out = mine.floats({7.0F, 7.0F});
      CHECK(XlaCall(mine, Kind::kAllgather, in, out, 2).run(port) == "");
      mine.synchronize();
      CHECK(out.values() == std::vector{0.0F, 1.0F});
    });
  }
}

TEST_CASE("zeros where the program wants them, and errors as XLA's") {
  DeviceWorld world(1);
  DeviceRank& mine = world.rank(0);
  TestPort port(world.engines().engine(0), mine);
  const DeviceFloats tensor = mine.floats({3.0F});
  XlaCall zeroed(mine, Kind::kAllreduce, tensor, tensor, 1);
  zeroed.zero_result();
  CHECK(zeroed.run(port) == "");
  mine.synchronize();
  CHECK(tensor.values() == std::vector{0.0F});
  const DeviceFloats out = mine.floats({0.0F, 0.0F});
  const std::string misfit = XlaCall(mine, Kind::kAllgather, tensor, out, 2).run(port);
  CHECK(misfit.find("the result has shape [1], the compiled program expects [2]") !=
        std::string::npos);
  stand_in_fail("ncclAllReduce", 3, 0);
  const std::string text = XlaCall(mine, Kind::kAllreduce, tensor, tensor, 1).run(port);
  CHECK(text.starts_with("HorovodInternalError: "));
  CHECK(text.find("ncclAllReduce: unhandled system error") != std::string::npos);
}

}  // namespace
}  // namespace hvd::test
