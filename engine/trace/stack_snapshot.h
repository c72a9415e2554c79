// The stacks of all threads, as a signal handler writes them to a file.
#pragma once

#include <string>

namespace hvd {

// `signal_number` has such a handler, which writes to the end of `fd`; this thread does not block
// the signal. The handler runs in a copy of this process: threads go on meanwhile, so it may find
// their frames half made and crash, which ends the copy only. Empty if every copy crashes, or none
// can be made. Blocks for a few seconds at most.
std::string stack_snapshot(int signal_number, int fd);

}  // namespace hvd
