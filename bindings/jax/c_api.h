// The part of XLA's C API for foreign functions (xla/ffi/api/c_api.h) that we use, declared here so
// that building needs no JAX. It is version 0.1, from the oldest jaxlib that we support (0.6.2).
// Later ones accept older handlers. Structs begin with their size and only grow at their end.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct XLA_FFI_Api;
struct XLA_FFI_Error;
struct XLA_FFI_ExecutionContext;
struct XLA_FFI_Future;

inline constexpr int kXlaFfiMajor = 0;
inline constexpr int kXlaFfiMinor = 1;

enum XLA_FFI_Extension_Type : int { XLA_FFI_Extension_Metadata = 1 };

struct XLA_FFI_Extension_Base {
  std::size_t struct_size;
  XLA_FFI_Extension_Type type;
  XLA_FFI_Extension_Base* next;
};

struct XLA_FFI_Api_Version {
  std::size_t struct_size = sizeof(XLA_FFI_Api_Version);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  int major_version;
  int minor_version;
};

// XLA asks for this when a handler is registered: the version that the handler was made for.
struct XLA_FFI_Metadata {
  std::size_t struct_size;
  XLA_FFI_Api_Version api_version;
  std::uint32_t traits;
};

struct XLA_FFI_Metadata_Extension {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata* metadata;
};

enum XLA_FFI_Error_Code : int {
  XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
  XLA_FFI_Error_Code_INTERNAL = 13,
};

enum XLA_FFI_DataType : int {
  XLA_FFI_DataType_PRED = 1,
  XLA_FFI_DataType_S8 = 2,
  XLA_FFI_DataType_S16 = 3,
  XLA_FFI_DataType_S32 = 4,
  XLA_FFI_DataType_S64 = 5,
  XLA_FFI_DataType_U8 = 6,
  XLA_FFI_DataType_U16 = 7,
  XLA_FFI_DataType_F16 = 10,
  XLA_FFI_DataType_F32 = 11,
  XLA_FFI_DataType_F64 = 12,
  XLA_FFI_DataType_C64 = 15,
  XLA_FFI_DataType_BF16 = 16,
  XLA_FFI_DataType_C128 = 18,
};

struct XLA_FFI_Buffer {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

enum XLA_FFI_AttrType : int {
  XLA_FFI_AttrType_SCALAR = 3,
  XLA_FFI_AttrType_STRING = 4,
};

struct XLA_FFI_ByteSpan {
  const char* ptr;
  std::size_t len;
};

struct XLA_FFI_Scalar {
  XLA_FFI_DataType dtype;
  void* value;
};

enum XLA_FFI_ExecutionStage : int { XLA_FFI_ExecutionStage_EXECUTE = 3 };

// All arguments and results are buffers. We do not read their types.
struct XLA_FFI_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  const int* types;
  void** args;
};

struct XLA_FFI_Rets {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  const int* types;
  void** rets;
};

struct XLA_FFI_Attrs {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  XLA_FFI_AttrType* types;
  XLA_FFI_ByteSpan** names;
  void** attrs;
};

struct XLA_FFI_CallFrame {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Args args;
  XLA_FFI_Rets rets;
  XLA_FFI_Attrs attrs;
  // Set by an asynchronous handler, with its result to come. Until then XLA keeps the buffers.
  XLA_FFI_Future* future;
};

struct XLA_FFI_Error_Create_Args {
  std::size_t struct_size = sizeof(XLA_FFI_Error_Create_Args);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  const char* message;
  XLA_FFI_Error_Code errc;
};

struct XLA_FFI_Stream_Get_Args {
  std::size_t struct_size = sizeof(XLA_FFI_Stream_Get_Args);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  XLA_FFI_ExecutionContext* ctx;
  void* stream;  // a CUstream, on platform CUDA
};

struct XLA_FFI_Future_Create_Args {
  std::size_t struct_size = sizeof(XLA_FFI_Future_Create_Args);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  XLA_FFI_Future* future = nullptr;
};

struct XLA_FFI_Future_SetAvailable_Args {
  std::size_t struct_size = sizeof(XLA_FFI_Future_SetAvailable_Args);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  XLA_FFI_Future* future;
};

struct XLA_FFI_Future_SetError_Args {
  std::size_t struct_size = sizeof(XLA_FFI_Future_SetError_Args);
  XLA_FFI_Extension_Base* extension_start = nullptr;
  XLA_FFI_Future* future;
  XLA_FFI_Error* error;  // XLA's from here on
};

// Functions that we do not call have no types here. They only keep the places of the others.
struct XLA_FFI_Api {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Api_Version api_version;
  const void* internal_api;
  XLA_FFI_Error* (*Error_Create)(XLA_FFI_Error_Create_Args*);
  void (*Error_GetMessage)();
  void (*Error_Destroy)();
  void (*Handler_Register)();
  XLA_FFI_Error* (*Stream_Get)(XLA_FFI_Stream_Get_Args*);
  void (*TypeId_Register)();
  void (*ExecutionContext_Get)();
  void (*State_Set)();
  void (*State_Get)();
  void (*DeviceMemory_Allocate)();
  void (*DeviceMemory_Free)();
  void (*ThreadPool_Schedule)();
  void (*ThreadPool_NumThreads)();
  XLA_FFI_Error* (*Future_Create)(XLA_FFI_Future_Create_Args*);
  XLA_FFI_Error* (*Future_SetAvailable)(XLA_FFI_Future_SetAvailable_Args*);
  XLA_FFI_Error* (*Future_SetError)(XLA_FFI_Future_SetError_Args*);
};

}  // extern "C"
