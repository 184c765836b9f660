// The return addresses of the calling thread, innermost first: the same ones that backtrace() gives, at a tenth of its
// cost when they were seen before, and without the loader's lock. The stack ends where it cannot be followed.
#pragma once

#include "record/record.h"

namespace memscope {

struct CodeRange {
    u64 begin, end;
};

// At most `max` of them. Those that lie in `skipped` are left out: our own frames, which are on top and wherever one
// hooked function called another. 0: none.
// No allocation and no lock.
u32 walk_native_stack(void** addresses, u32 max, CodeRange skipped) noexcept;

// Where this library's own code lies.
CodeRange own_code() noexcept;

}  // namespace memscope
