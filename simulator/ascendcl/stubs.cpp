// libascendcl.so: functions that do nothing and say so when traced.
#include "abi/export.h"
#include "npusim.h"

#define STUB(name)                   \
    SIM_API long name() {            \
        npusim_trace("stub " #name); \
        return 0;                    \
    }
#include "ascendcl/stubs.inc"
