// Counts calls of simulated functions and makes those fail that NPUSIM_FAIL names.
#pragma once

#include "abi/export.h"

struct SimCall;
// The counter of a function: the same for the same name, never freed, so that a library may be unloaded and loaded.
SIM_API SimCall* npusim_call(const char* function);
// Counts a call; what it must return at once instead of doing its work, or 0. `failure`: its usual error.
SIM_API int npusim_enter(SimCall* call, int failure);

// First statement of a function that returns an error code.
#define SIM_CALL(failure)                                                     \
    do {                                                                      \
        static SimCall* const sim_call_ = npusim_call(__func__);              \
        if (const int code_ = npusim_enter(sim_call_, failure)) return code_; \
    } while (0)
