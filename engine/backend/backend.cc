#include "backend/backend.h"

namespace hvd {

void CollectiveBackend::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  clear();
  switch (kind) {
    case Kind::kAllreduce:
      return begin_allreduce(works, cut);
    case Kind::kAllgather:
      return begin_allgather(works);
    case Kind::kBroadcast:
      return begin_broadcast(works);
    case Kind::kAlltoall:
      return begin_alltoall(works);
    case Kind::kReducescatter:
      return begin_reducescatter(works);
    case Kind::kBarrier:
    case Kind::kJoin:
      return;  // complete, since all ranks have arrived
  }
}

}  // namespace hvd
