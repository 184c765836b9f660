// What every library of the simulated CANN exports has C linkage and default visibility.
#pragma once

#define SIM_API extern "C" __attribute__((visibility("default")))
