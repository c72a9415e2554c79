// The parts that most other parts of an engine use. Each has this as a private base.
#pragma once

#include "runtime/counters.h"
#include "runtime/doorbells.h"
#include "runtime/engine_lock.h"
#include "runtime/failures.h"
#include "runtime/handle_table.h"
#include "runtime/process_sets.h"
#include "runtime/progress_role.h"
#include "trace/recorder.h"

namespace hvd {

struct CommonParts {
  EngineLock& lock_;
  World& world_;
  const Failures& failures_;
  Recorder& recorder_;
  Counters& counters_;
  HandleTable& results_;
  ProcessSets& sets_;
  Doorbells& doorbells_;
  ProgressRole& role_;
};

}  // namespace hvd
