// What AscendCL wants to know of an event and the runtime has no public call for.
#pragma once

#include <stdint.h>
#include "abi/export.h"

SIM_API int npusim_event_is_complete(void* event);
// Monotonic time of the event's last record, ns; 0 before the first.
SIM_API int64_t npusim_event_ns(void* event);
