#include "bindings/tensorflow/spec.h"

#include <array>
#include <cstdint>

#include "bindings/submissions.h"

namespace hvd::tensorflow {

namespace {

// Reads attributes. After the first failure it returns zeros.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int integer(const char* name) {
    std::int64_t value = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    return static_cast<int>(value);
  }
  float number(const char* name) {
    float value = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_.get());
    return value;
  }
  bool truth(const char* name) {
    unsigned char value = 0;
    if (ok()) TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status_.get());
    return value != 0;
  }
  std::vector<std::string> texts(const char* name) {
    std::int32_t count = 0;
    std::int32_t total_bytes = 0;
    if (!ok()) return {};
    TF_OpKernelConstruction_GetAttrSize(construction_, name, &count, &total_bytes, status_.get());
    if (!ok()) return {};
    std::vector<char*> begins(static_cast<std::size_t>(count));
    std::vector<std::size_t> lengths(static_cast<std::size_t>(count));
    std::vector<char> storage(static_cast<std::size_t>(total_bytes) + 1);
    TF_OpKernelConstruction_GetAttrStringList(construction_, name, begins.data(), lengths.data(),
                                              count, storage.data(), storage.size(), status_.get());
    if (!ok()) return {};
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < begins.size(); ++i) texts.emplace_back(begins[i], lengths[i]);
    return texts;
  }
  bool ok() const { return status_.ok(); }
  TF_Status* status() const { return status_.get(); }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

}  // namespace

std::unique_ptr<const Spec> read_spec(Kind kind, TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  auto spec = std::make_unique<Spec>();
  Request& request = spec->request;
  request.kind = kind;
  spec->is_blocking = attributes.truth("is_blocking");
  const Collective& collective = collective_of(kind);
  if (collective.has_tensors()) {
    spec->names = attributes.texts("names");
    spec->process_set = attributes.integer("process_set_id");
  }
  if (collective.may_be_grouped) {
    request.is_grouped = spec->is_group = attributes.truth("is_group");
  }
  if (collective.is_reduction) {
    request.op = static_cast<ReduceOp>(attributes.integer("reduce_op"));
    request.prescale = attributes.number("prescale_factor");
    request.postscale = attributes.number("postscale_factor");
    request.format = static_cast<LinkFormat>(attributes.integer("link_format"));
  }
  if (collective.has_root) request.root = attributes.integer("root_rank");
  if (attributes.ok()) return spec;
  TF_OpKernelConstruction_Failure(construction, attributes.status());
  return nullptr;
}

bool is_complex(TF_DataType type) { return type == TF_COMPLEX64 || type == TF_COMPLEX128; }

std::optional<Dtype> dtype_of(TF_DataType type) {
  static constexpr std::array<std::pair<TF_DataType, Dtype>, kDtypeCount + 2> kDtypes{{
      {TF_UINT8, Dtype::kUint8},
      {TF_UINT16, Dtype::kUint16},
      {TF_INT8, Dtype::kInt8},
      {TF_INT16, Dtype::kInt16},
      {TF_INT32, Dtype::kInt32},
      {TF_INT64, Dtype::kInt64},
      {TF_HALF, Dtype::kFloat16},
      {TF_BFLOAT16, Dtype::kBfloat16},
      {TF_FLOAT, Dtype::kFloat32},
      {TF_DOUBLE, Dtype::kFloat64},
      {TF_BOOL, Dtype::kBool},
      {TF_COMPLEX64, Dtype::kFloat32},
      {TF_COMPLEX128, Dtype::kFloat64},
  }};
  return find_dtype(kDtypes, type);
}

}  // namespace hvd::tensorflow
