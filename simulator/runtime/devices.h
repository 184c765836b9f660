// The runtime's devices are logical: positions in ASCEND_RT_VISIBLE_DEVICES. The driver below knows physical ones.
#pragma once

#include <cstdint>

// The physical device of a logical one, or -1 when there is none.
int32_t physical_device(int32_t logical);
// The logical device of this thread, or -1 while none is set.
int32_t current_device();
void adopt_device(int32_t logical);

// Driver memory that the runtime takes for itself while NPUSIM_CANN_MEMORY is set: at the first use of a device, and
// per stream. Without the knob nothing is taken.
bool take_device_memory(int32_t logical);
void give_back_device_memory(int32_t logical);
void* take_stream_memory(int32_t logical);
void give_back_stream_memory(void* block);
