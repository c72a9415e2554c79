// The port that the plugin was attached to.
#pragma once

#include "bindings/engine_port.h"

namespace hvd::tensorflow {

// Only once the plugin has been attached.
EnginePort& attached_port();

}  // namespace hvd::tensorflow
