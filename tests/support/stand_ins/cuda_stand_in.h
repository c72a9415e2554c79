// The test interface of the stand-in for libcuda, in addition to CUDA's own functions.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The number of calls of a function since the last reset; also for NCCL's stand-in.
long stand_in_calls(const char* function);
// After `calls` more calls that function always returns `code`, until the next reset.
void stand_in_fail(const char* function, int code, long calls);
// The call of any function after `calls` more fails, once: CUDA's with 719, NCCL's with 3.
void stand_in_fail_once(long calls);
// The function that did; null: none yet.
const char* stand_in_failed();
void stand_in_reset();
void stand_in_set_gpus(int count);
// Until the next reset kernels do nothing, without an error.
void stand_in_spoil_kernels();

// Until the next reset each GPU has so much memory; 0: as much as is wanted.
void stand_in_limit_memory(std::size_t bytes);
// Whether GPUs have memory pools. After a reset they have.
void stand_in_set_pools(int has_pools);

// Whether each GPU has room for one kernel of NCCL: they run in the order in which they were put
// into streams. After a reset there is room for all.
void stand_in_limit_kernels(int is_limited);
int stand_in_has_few_kernels();

// Memory that a device reaches, as the CPU sees it; null if there is none.
void* stand_in_host_address(std::uint64_t address);
// Runs `work` in a stream, in order.
void stand_in_enqueue(void* stream, void (*work)(void*), void* argument);
// Waits until a stream of `device` has done all its work; null: its default stream.
void stand_in_synchronize(void* stream, int device);
void stand_in_set_capturing(void* stream, int is_capturing);
// The device that is current in this thread; -1 for none.
int stand_in_current_device();
// For other stand-ins: counts a call and returns its error code; 0 for success.
int stand_in_count(const char* function);
}
