// Reads the knobs of knobs.inc: from the environment, else the default. A knob is read once, when first needed.
#pragma once

#include <stdint.h>
#include "abi/export.h"

enum class Knob {
#define KNOB(name, value, meaning) name,
#include "knobs.inc"
#undef KNOB
};

// The knob's text; never null, lives as long as the process.
SIM_API const char* npusim_knob_text(Knob knob);
// The knob as a number; 0 when it is none.
SIM_API int64_t npusim_knob(Knob knob);
