// For which communicator HCCL asks the driver for memory: its call on this thread knows, the driver does not.
#pragma once

#include "record/record.h"

namespace memscope {

inline constexpr u32 kHcclModule = 3;  // in HAL's flag word

// What the driver gave HCCL within a call of the program's, the outermost one. Not on the stack of that call: a thread
// that is cancelled while HCCL waits for its peers leaves it without a word, and may give memory back on its way out.
struct HcclCall {
    static constexpr u32 kMost = 16;  // two buffers and some tables; more are HCCL's, of no communicator by name
    u64 taken[kMost];
    u32 count;
    bool is_open;

    void took(u64 ptr) noexcept {
        if (is_open && count < kMost) taken[count++] = ptr;
    }
    // Before the driver has it back: afterwards the address may be anybody's.
    void gives_back(u64 ptr) noexcept {
        u32 kept = 0;
        for (u32 i = 0; i < count; ++i)
            if (taken[i] != ptr) taken[kept++] = taken[i];
        count = kept;
    }
};

extern __thread HcclCall t_hccl_call;

}  // namespace memscope
