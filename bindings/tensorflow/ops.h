// The operations of a graph: their signatures and the shapes of their results.
#pragma once

#include <string>

#include "bindings/tensorflow/handles.h"
#include "core/collectives.h"

namespace hvd::tensorflow {

inline constexpr const char* kWorldNumberOp = "HorovodWorldNumber";
inline constexpr const char* kTokenOp = "HorovodToken";
inline constexpr const char* kSelfTestOp = "HorovodSelfTest";

// "HorovodAllreduce".
std::string op_name(const Collective& collective);
// Whether the collective is an operation of graphs. A barrier is not: it has no tensor that orders
// it.
constexpr bool is_op(const Collective& collective) { return collective.kind != Kind::kBarrier; }

void register_ops(TF_Status* status);

}  // namespace hvd::tensorflow
