// The counter of the device's oscillator: what stamps task records. It may run ahead of the host's clock and faster.
#pragma once

#include <cstdint>

// Ticks now; NPUSIM_CLOCK_MHZ of them are a microsecond.
uint64_t device_ticks();
