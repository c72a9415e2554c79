// What a rank is doing, in words, from its flight recorder and Python's stacks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trace/recorder.h"

namespace hvd {

// "has last submitted broadcast 'x' 61.2 s ago (done)": up to three operations, the last one first.
std::string last_operations(const RecorderView& recorder, std::int64_t now);

// The main thread's part of what faulthandler wrote about all threads, with `indent` before each
// line; empty for none. At most `most_lines` calls.
std::string main_stack(std::string_view stacks, std::string_view indent, int most_lines);

// Whether the kernel says that a process is stopped, as by SIGSTOP or a debugger.
bool is_stopped(int pid);

}  // namespace hvd
