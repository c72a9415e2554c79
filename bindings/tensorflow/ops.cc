// Collectives are stateless, so that nothing orders them: tf.function runs stateful operations one
// after another. But a stateless operation on constants would be folded, that is run once while the
// graph is optimised, on whichever rank optimises it. Their last input, the token, prevents that:
// it comes from a stateful operation. Equal operations are not merged because names differ.
//
// Collectives take lists: one operation for one tensor, for a group, or for many tensors under
// names of their own.
#include "bindings/tensorflow/ops.h"

#include <functional>
#include <vector>

namespace hvd::tensorflow {

namespace {

using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);

constexpr const char* kTensorsAttr =
    "T: list({uint8, uint16, int8, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1";
constexpr const char* kTensorAttr =
    "T: {uint8, uint16, int8, int16, int32, int64, half, bfloat16, float, double, bool}";
constexpr const char* kTokenInput = "token: int32";

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

// Every input but the token, in turn; `shape_of` changes a shape in place.
void infer_each(TF_ShapeInferenceContext* context, TF_Status* status,
                const std::function<void(TF_ShapeHandle*)>& shape_of) {
  const auto count = static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    const ShapeHandle shape(TF_NewShapeHandle());
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (TF_GetCode(status) == TF_OK) shape_of(shape.get());
    if (TF_GetCode(status) == TF_OK) {
      TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    }
  }
}

void infer_same(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_each(context, status, [](TF_ShapeHandle*) {});
}

ShapeHandle unknown_vector(TF_ShapeInferenceContext* context) {
  constexpr auto kUnknown = static_cast<std::size_t>(-1);
  return ShapeHandle(TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
}

// The number of rows is known when the operation has run.
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

void infer_alltoall(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, 0, shape.get(), status);
  if (TF_GetCode(status) == TF_OK) forget_rows(context, shape.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 1, unknown_vector(context).get(), status);
}

void infer_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void infer_self_test(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapeHandle shape(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, 0, shape.get(), status);
  if (TF_GetCode(status) == TF_OK) {
    TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
  }
}

void register_collectives(TF_Status* status) {
  constexpr const char* kNames = "names: list(string) >= 1";  // one, or one for each tensor
  constexpr const char* kIsGroup = "is_group: bool = false";
  constexpr const char* kSet = "process_set_id: int = 0";
  constexpr const char* kBlocking = "is_blocking: bool = false";
  constexpr const char* kReduceOp = "reduce_op: int";
  constexpr const char* kPrescale = "prescale_factor: float = 1.0";
  constexpr const char* kPostscale = "postscale_factor: float = 1.0";
  register_op(
      kAllreduceOp,
      {.inputs = {"tensors: T", kTokenInput},
       .outputs = {"reduced: T"},
       .attrs = {kTensorsAttr, kNames, kIsGroup, kSet, kBlocking, kReduceOp, kPrescale, kPostscale},
       .infer = infer_same},
      status);
  register_op(
      kReducescatterOp,
      {.inputs = {"tensors: T", kTokenInput},
       .outputs = {"reduced: T"},
       .attrs = {kTensorsAttr, kNames, kIsGroup, kSet, kBlocking, kReduceOp, kPrescale, kPostscale},
       .infer = infer_rows_unknown},
      status);
  register_op(kAllgatherOp,
              {.inputs = {"tensors: T", kTokenInput},
               .outputs = {"gathered: T"},
               .attrs = {kTensorsAttr, kNames, kIsGroup, kSet, kBlocking},
               .infer = infer_rows_unknown},
              status);
  register_op(kBroadcastOp,
              {.inputs = {"tensors: T", kTokenInput},
               .outputs = {"received: T"},
               .attrs = {kTensorsAttr, kNames, kSet, kBlocking, "root_rank: int"},
               .infer = infer_same},
              status);
  register_op(kAlltoallOp,
              {.inputs = {"tensor: T", "splits: int32", kTokenInput},
               .outputs = {"received: T", "received_splits: int32"},
               .attrs = {kTensorAttr, kNames, kSet, kBlocking},
               .infer = infer_alltoall},
              status);
}

}  // namespace

void register_ops(TF_Status* status) {
  register_collectives(status);
  const Signature source{.inputs = {},
                         .outputs = {"value: int32"},
                         .attrs = {},
                         .is_stateful = true,
                         .infer = infer_scalar};
  register_op(kTokenOp, source, status);
  register_op(kJoinOp,
              {.inputs = {},
               .outputs = {"last_rank: int32"},
               .attrs = {"is_blocking: bool = false"},
               .is_stateful = true,
               .infer = infer_scalar},
              status);
  register_op(kWorldNumberOp,
              {.inputs = {},
               .outputs = {"value: int32"},
               .attrs = {"what: int", "process_set_id: int = 0"},
               .is_stateful = true,
               .infer = infer_scalar},
              status);
  register_op(kSelfTestOp,
              {.inputs = {"value: int32"},
               .outputs = {"same: int32"},
               .attrs = {},
               .is_stateful = true,
               .infer = infer_self_test},
              status);
}

}  // namespace hvd::tensorflow
