// A rank whose engine did not start, while its process may live on.
#pragma once

#include <string>

#include "runtime/world.h"
#include "transport/shared_space.h"

namespace hvd {

// Ends the world for the other ranks of this host, which would wait for this one. `reason` is for
// the text of their errors. Throws Error if the space cannot be mapped.
void report_failed_start(const EngineConfig& config, SharedSpace& space, const std::string& reason);

}  // namespace hvd
