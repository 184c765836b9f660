// NPUSIM_REPORT: what a process did with the simulator, written when it exits.
#pragma once

#include <cstdint>

// Arranges for the report, if there is to be one. Called once.
void report_at_exit();
// Calls `take` with each function that was called, and how often.
void for_each_call(void (*take)(void* context, const char* name, uint64_t count), void* context);
