// Reading the memory of a watched block, wherever it lies, and waiting until it may be read.
//
// Only through functions that a loaded library has: what is not there is not loaded for it.
#pragma once

#include "record/record.h"

namespace memscope {

// Copies `bytes` bytes of a device's or the host's memory to the host. False: they cannot be read, or nobody who could
// read them is loaded. What is still under way on other streams is not waited for.
bool copy_from(DeviceType type, u64 from, void* to, u64 bytes) noexcept;

// Waits until what was asked of the stream is done; nullptr: of the whole device, by the calling thread.
void settle_npu(void* stream) noexcept;

// While a stream is captured into a graph nothing may be waited for or copied: it would spoil the capture.
bool is_capturing(DeviceType type) noexcept;

}  // namespace memscope
