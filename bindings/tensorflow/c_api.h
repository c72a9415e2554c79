// The part of TensorFlow's C API for plugins (tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h)
// that we use, declared here so that building needs no TensorFlow. The same binary works with all
// versions that have these symbols. They are found in the TensorFlow that loads the plugin.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_COMPLEX64 = 8,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_COMPLEX128 = 18,
  TF_HALF = 19,
};

enum TF_Code : int {
  TF_OK = 0,
  TF_CANCELLED = 1,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
};

// Status
TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code, const char* message);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

// Tensors
TF_Tensor* TF_NewTensor(TF_DataType, const std::int64_t* dims, int dims_count, void* data,
                        std::size_t size_bytes,
                        void (*deallocate)(void* data, std::size_t size_bytes, void* argument),
                        void* argument);
void TF_DeleteTensor(TF_Tensor*);
TF_DataType TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
std::int64_t TF_Dim(const TF_Tensor*, int index);
void* TF_TensorData(const TF_Tensor*);

// Operations
TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*infer)(TF_ShapeInferenceContext*,
                                                                   TF_Status*));

// Shapes
std::int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_NewShapeHandle();
void TF_DeleteShapeHandle(TF_ShapeHandle*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*,
                                      TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*,
                                       TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*, std::size_t size);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext*, TF_ShapeHandle*);
void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext*, TF_ShapeHandle*,
                                             std::int64_t rank, TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle*,
                                      std::int64_t start, std::int64_t end, TF_ShapeHandle* result,
                                      TF_Status*);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*, TF_ShapeHandle* first,
                                               TF_ShapeHandle* second, TF_ShapeHandle* result,
                                               TF_Status*);

// Kernels
TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*),
                                      void (*destroy)(void*));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*,
                                                           TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*));
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder*, TF_Status*);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*);

void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* attr,
                                         std::int32_t* list_size, std::int32_t* total_size,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*, const char* attr,
                                          std::int64_t* value, TF_Status*);
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction*, const char* attr, float* value,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction*, const char* attr,
                                         unsigned char* value, TF_Status*);
void TF_OpKernelConstruction_GetAttrStringList(TF_OpKernelConstruction*, const char* attr,
                                               char** values, std::size_t* lengths, int max_values,
                                               void* storage, std::size_t storage_size, TF_Status*);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);

int TF_NumInputs(TF_OpKernelContext*);
void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
void TF_SetOutput(TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int* candidates,
                                           int candidate_count, int output_index,
                                           const std::int64_t* dims, int dims_count,
                                           int* forwarded_input, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);

}  // extern "C"
