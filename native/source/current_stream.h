// On which stream torch launches what a thread asks of a card now.
//
// Who knows is the observer (torch_ext/observer.cpp), which is compiled against the user's torch: c10::cuda and c10_npu
// export functions that say it, but how they return a stream is their own affair (torch_npu's class has a destructor,
// and comes through memory; CUDA's comes in registers). Without the observer nobody tells.
//
// device: as the process numbers it. Both answer as told_stream() does. The observer asks torch for what it keeps for
// each thread: no lock, some nanoseconds.
#pragma once

#include "record/record.h"
#include "torch_ext/operator_sink.h"

namespace memscope {

// From now on this one is asked.
void ask_for_streams(memscope_stream_function ask) noexcept;

// For a pool of torch's that hands out a block of this device: it has asked the same just before.
u32 stream_of_allocation(DeviceType type, i16 device) noexcept;

// For an operator. Not before the first allocation on the device: torch would start it.
u32 stream_of_operator(DeviceType type, i16 device) noexcept;

}  // namespace memscope
