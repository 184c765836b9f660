// On which stream torch launches what a thread asks of a card now.
//
// device: as the process numbers it. Both answer as told_stream() does; kNoStream where torch has no streams, or nobody
// knows. They ask torch for what it keeps for each thread: no lock, some nanoseconds.
#pragma once

#include "record/record.h"

namespace memscope {

// For a pool of torch's that hands out a block of this device: it has asked the same just before.
u32 stream_of_allocation(DeviceType type, i16 device) noexcept;

// For an operator. Not before the first allocation on the device: torch would start it, or fail.
u32 stream_of_operator(DeviceType type, i16 device) noexcept;

}  // namespace memscope
