// Stream ids for marks and ranges.
#pragma once

#include "record/record.h"

namespace memscope::mstx {

// The runtime's id of a stream that was created under our eyes; any other value as it is, 0 for none. What comes with
// a mark is not trusted: the Python module of mstx passes whatever object it was given, and the runtime would follow
// it.
u64 stream_id(const void* stream) noexcept;

}  // namespace memscope::mstx
