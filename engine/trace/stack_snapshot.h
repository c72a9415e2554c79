// The stacks of all threads, as a signal handler writes them to a file.
#pragma once

#include <string>

namespace hvd {

// `signal_number` has such a handler, which writes to the end of `fd`. This thread does not block
// the signal. The handler runs in a copy of this process. The threads run on while the copy is
// made, so the handler may find incomplete frames and crash; that ends only the copy. Empty if
// every copy crashes, or if no copy can be made. Blocks for a few seconds at most.
std::string stack_snapshot(int signal_number, int fd);

}  // namespace hvd
