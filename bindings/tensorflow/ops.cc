// Collectives are stateless operations, since tf.function runs stateful operations one after
// another. But a stateless operation on constants would be folded: it would run once while the
// graph is optimised, at a different time on each rank. Their last input, the token, prevents that:
// it comes from a stateful operation. Equal operations are not merged because their names differ.
//
// Collectives take lists: one operation for one tensor, for a group, or for many tensors with a
// name each.
#include "bindings/tensorflow/ops.h"

#include <functional>
#include <initializer_list>
#include <vector>

namespace hvd::tensorflow {

namespace {

using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);

constexpr const char* kTensorsAttr =
    "T: list({uint8, uint16, int8, int16, int32, int64, half, bfloat16, float, double, complex64, "
    "complex128, bool}) >= 1";
constexpr const char* kTensorAttr =
    "T: {uint8, uint16, int8, int16, int32, int64, half, bfloat16, float, double, complex64, "
    "complex128, bool}";
constexpr const char* kTokenInput = "token: int32";
constexpr const char* kBlockingAttr = "is_blocking: bool = false";

struct Signature {
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attrs;
  bool is_stateful = false;
  InferShapes infer = nullptr;
};

void register_op(const char* name, const Signature& signature, TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) return;
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(name);
  for (const char* attr : signature.attrs) TF_OpDefinitionBuilderAddAttr(builder, attr);
  for (const char* input : signature.inputs) TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : signature.outputs) TF_OpDefinitionBuilderAddOutput(builder, output);
  if (signature.is_stateful) TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, signature.infer);
  TF_RegisterOpDefinition(builder, status);  // takes the builder
}

// Output `index` has the shape of that input, which `change` may change.
void infer_one(TF_ShapeInferenceContext* context, int index, TF_Status* status,
               const std::function<void(TF_ShapeHandle*)>& change) {
  const ShapeHandle shape(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, index, shape.get(), status);
  if (TF_GetCode(status) == TF_OK) change(shape.get());
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, index, shape.get(), status);
}

// The same for all inputs except the last, the token.
void infer_each(TF_ShapeInferenceContext* context, TF_Status* status,
                const std::function<void(TF_ShapeHandle*)>& change) {
  const auto count = static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    infer_one(context, i, status, change);
  }
}

void infer_same(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_each(context, status, [](TF_ShapeHandle*) {});
}

ShapeHandle unknown_vector(TF_ShapeInferenceContext* context) {
  constexpr auto kUnknown = static_cast<std::size_t>(-1);
  return ShapeHandle(TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
}

// The number of rows is not known before the operation has run.
void forget_rows(TF_ShapeInferenceContext* context, TF_ShapeHandle* shape, TF_Status* status) {
  TF_ShapeInferenceContextWithRankAtLeast(context, shape, 1, shape, status);
  if (TF_GetCode(status) != TF_OK) return;
  if (TF_ShapeInferenceContextRankKnown(context, shape) == 0) return;
  const ShapeHandle row(TF_NewShapeHandle());
  TF_ShapeInferenceContextSubshape(context, shape, 1, INT64_MAX, row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextConcatenateShapes(context, unknown_vector(context).get(), row.get(),
                                            shape, status);
}

void infer_rows_unknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_each(context, status, [&](TF_ShapeHandle* shape) { forget_rows(context, shape, status); });
}

// The received splits follow the tensor.
void infer_received(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_one(context, 0, status,
            [&](TF_ShapeHandle* shape) { forget_rows(context, shape, status); });
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 1, unknown_vector(context).get(), status);
}

void infer_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void infer_self_test(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_one(context, 0, status, [](TF_ShapeHandle*) {});
}

InferShapes inference_of(const Collective& collective) {
  if (collective.keeps_shape()) return infer_same;
  return collective.has_splits() ? infer_received : infer_rows_unknown;
}

const char* output_of(const Collective& collective) {
  if (collective.is_reduction) return "reduced: T";
  return collective.result == ResultShape::kAllRows ? "gathered: T" : "received: T";
}

Signature signature_of(const Collective& collective) {
  Signature signature{.inputs = {collective.has_splits() ? "tensor: T" : "tensors: T"},
                      .outputs = {output_of(collective)},
                      .attrs = {collective.has_splits() ? kTensorAttr : kTensorsAttr,
                                "names: list(string) >= 1"},  // see submissions_of()
                      .infer = inference_of(collective)};
  const auto add = [](std::vector<const char*>& list, std::initializer_list<const char*> more) {
    list.insert(list.end(), more);
  };
  if (collective.has_splits()) {
    add(signature.inputs, {"splits: int32"});
    add(signature.outputs, {"received_splits: int32"});
  }
  add(signature.inputs, {kTokenInput});
  if (collective.may_be_grouped) add(signature.attrs, {"is_group: bool = false"});
  add(signature.attrs, {"process_set_id: int = 0", kBlockingAttr});
  if (collective.is_reduction) {
    add(signature.attrs, {"reduce_op: int", "prescale_factor: float = 1.0",
                          "postscale_factor: float = 1.0", "link_format: int = 0"});
  }
  if (collective.has_root) add(signature.attrs, {"root_rank: int"});
  return signature;
}

}  // namespace

std::string op_name(const Collective& collective) {
  std::string name = collective.name;
  name.front() = static_cast<char>(name.front() - 'a' + 'A');
  return "Horovod" + name;
}

void register_ops(TF_Status* status) {
  for (const Collective& collective : kCollectives) {
    if (!collective.has_tensors()) continue;
    register_op(op_name(collective).c_str(), signature_of(collective), status);
  }
  const auto add_source = [status](const std::string& name, const char* output,
                                   std::vector<const char*> attrs) {
    register_op(name.c_str(),
                {.inputs = {},
                 .outputs = {output},
                 .attrs = std::move(attrs),
                 .is_stateful = true,
                 .infer = infer_scalar},
                status);
  };
  add_source(kTokenOp, "value: int32", {});
  add_source(op_name(collective_of(Kind::kJoin)), "last_rank: int32", {kBlockingAttr});
  add_source(kWorldNumberOp, "value: int32", {"what: int", "process_set_id: int = 0"});
  register_op(kSelfTestOp,
              {.inputs = {"value: int32"},
               .outputs = {"same: int32"},
               .attrs = {},
               .is_stateful = true,
               .infer = infer_self_test},
              status);
}

}  // namespace hvd::tensorflow
