// What the simulator offers beyond CANN's own functions: the truth that tests compare with, and what its libraries
// share. It lives in libascend_hal.so, below everything else, unless a line says otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

enum : int { NPUSIM_MOST_DEVICES = 16, NPUSIM_HOST = -1 };

// ---- the truth ----

// Bytes that driver calls asked for and nobody has freed yet, on a physical device (NPUSIM_HOST: pinned host memory of
// halMemAlloc), by process `pid` (0: by all that live). Dead processes hold nothing.
SIM_API uint64_t npusim_live_bytes(int device, int pid);
// Of the whole card: bytes in use, whole pages, with what NPUSIM_HBM_BASE_MB says others use; and its size.
SIM_API void npusim_hbm_info(uint32_t device, uint64_t* used, uint64_t* total);
// The physical device of a logical one of this process (ASCEND_RT_VISIBLE_DEVICES), or -1. In libruntime.so.
SIM_API int32_t npusim_physical_device(int32_t logical);
// The processes that hold memory of a device and how many bytes (whole pages) each; returns how many were written.
SIM_API int npusim_device_processes(uint32_t device, int* pids, uint64_t* bytes, int most);
// 1 when `address` lies in a block or mapping of this process; its device, size and flag word.
SIM_API int npusim_ptr_info(const void* address, uint32_t* device, uint64_t* size, uint64_t* flag);
// Bytes of host memory that are registered with the driver (halHostRegister) by this process.
SIM_API uint64_t npusim_registered_bytes(void);
// How often this process called a function, failed calls included; 0 for one never called.
SIM_API uint64_t npusim_call_count(const char* function);

// ---- steering ----

// The same text as the knob NPUSIM_FAIL, from now on: "function[:nth[:code]],…". Counts from this call on.
SIM_API void npusim_set_faults(const char* text);
// The text that aclGetRecentErrMsg returns on this thread.
SIM_API void npusim_set_error_message(const char* text);
SIM_API const char* npusim_error_message(void);

// ---- kernels and streams (libruntime.so) ----

// A simulated kernel: what a function handle points to.
struct SimKernel {
    uint64_t magic;
    const char* name;
    void (*run)(void* context);
    void* context;
};
enum : uint64_t { SIM_KERNEL_MAGIC = 0x4e50555f4b45524eull };
// Runs function(context) on the stream, in order: inline, or on the stream's thread when NPUSIM_ASYNC is set.
SIM_API void npusim_stream_run(void* stream, void (*function)(void*), void* context);

// ---- operators (libascendcl.so) ----

// The aclnn operator that this thread looked for in vain since it found one; "" when there is none.
SIM_API const char* npusim_missing_operator(void);
SIM_API void npusim_found_operator(void);

// ---- tracing ----

SIM_API void npusim_trace(const char* format, ...) __attribute__((format(printf, 1, 2)));
SIM_API int npusim_trace_on(void);
