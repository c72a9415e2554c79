// What tests ask of the stand-in for libcuda, beside CUDA's own functions.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// How often a function was called since the last reset; of NCCL's stand-in, too.
long stand_in_calls(const char* function);
// After `calls` more calls every one of that function returns `code`, until the next reset.
void stand_in_fail(const char* function, int code, long calls);
void stand_in_reset();
void stand_in_set_gpus(int count);
// Until the next reset kernels do nothing, and nobody is told.
void stand_in_spoil_kernels();

// Memory of a device as the CPU sees it; null where there is none.
void* stand_in_host_address(std::uint64_t address);
// Runs `work` in a stream, when it is its turn.
void stand_in_enqueue(void* stream, void (*work)(void*), void* argument);
// Waits until a stream of `device` has done all; null: its default stream.
void stand_in_synchronize(void* stream, int device);
void stand_in_set_capturing(void* stream, int is_capturing);
// The device that is current in this thread; -1 for none.
int stand_in_current_device();
// For other stand-ins: counts a call, and says what it is to return; 0 for success.
int stand_in_count(const char* function);
}
