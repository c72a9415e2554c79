// What a graph may contain: the operations' signatures and how shapes follow.
#pragma once

#include "bindings/tensorflow/handles.h"

namespace hvd::tensorflow {

inline constexpr const char* kAllreduceOp = "HorovodAllreduce";
inline constexpr const char* kAllgatherOp = "HorovodAllgather";
inline constexpr const char* kBroadcastOp = "HorovodBroadcast";
inline constexpr const char* kAlltoallOp = "HorovodAlltoall";
inline constexpr const char* kReducescatterOp = "HorovodReducescatter";
inline constexpr const char* kJoinOp = "HorovodJoin";
inline constexpr const char* kWorldNumberOp = "HorovodWorldNumber";
inline constexpr const char* kTokenOp = "HorovodToken";
inline constexpr const char* kSelfTestOp = "HorovodSelfTest";

void register_ops(TF_Status* status);

}  // namespace hvd::tensorflow
