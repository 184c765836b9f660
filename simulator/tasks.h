// What a task is called in the profiler's callbacks and on the driver's channel; between libruntime, libprofapi and
// libascend_hal.
#pragma once

#include <stdint.h>
#include "abi/export.h"

struct SimTask {
    uint32_t device;  // physical
    uint16_t stream;
    uint32_t task;  // 16 bits on A2 and A3
};

// Puts the begin or end of a task on its device's channel, stamped by the device's clock; nothing when it is off.
SIM_API void npusim_task_record(const SimTask* task, int is_end);
// 1 when the chip is of the A5 family.
SIM_API int npusim_is_a5(void);
// 1 when more than 2,048 streams are in use, which changes how task records are read.
SIM_API int npusim_streams_expanded(void);
// Reports a launch to the profiler's callbacks, on the launching thread.
SIM_API void npusim_task_launched(const SimTask* task, const char* name);
