// How the live blocks of a ring are used: ACCESS by ACCESS.
//
// In: every access to a block, by the block tracker, which found the block (by the base of the tensor's storage where
// the event knows it, else by the address). Out: the use of each block, and what it says about its owner: a block that
// an operator outside of autograd wrote first and one of autograd's reads is kept for the backward pass, an activation.
// Costs nothing without ACCESS events; 90 to 110 bytes for each live block that was accessed.
#pragma once

#include <algorithm>

#include "kernel/block_map.h"
#include "kernel/number_map.h"
#include "record/record.h"

namespace memscope::kernel {

// Times in CLOCK_MONOTONIC ns. longest_idle: the longest time in which nobody touched it between two accesses.
struct Use {
    u64 first_ts = 0, last_ts = 0, longest_idle = 0;
    u64 accesses = 0, reads = 0, writes = 0;  // the others are of an unknown sort
    bool is_made_forward = false;
};

class BlockUses {
public:
    // how: of an ACCESS. Whether the block is an activation by it.
    bool access(const Block& block, u32 how, u64 ts, bool is_backward) {
        is_recorded_ = true;
        Use& use = uses_.obtain(block.id);
        if (use.accesses == 0) {
            use.first_ts = ts;
            use.is_made_forward = how == kWrite && !is_backward;
        }
        // Threads overtake each other between clock and ring: time does not run backwards here.
        if (use.accesses != 0 && ts > use.last_ts) use.longest_idle = std::max(use.longest_idle, ts - use.last_ts);
        use.last_ts = std::max(use.last_ts, ts);
        use.accesses += 1;
        use.reads += how == kRead ? 1 : 0;
        use.writes += how == kWrite ? 1 : 0;
        return is_backward && how == kRead && use.is_made_forward;
    }
    // Whether operators are recorded at all.
    bool is_recorded() const noexcept { return is_recorded_; }
    // null: it was never accessed.
    const Use* find(const Block& block) const noexcept { return uses_.find(block.id); }
    void end(const Block& block) noexcept { uses_.erase(block.id); }
    void shrink() { uses_.shrink(); }

private:
    static constexpr u32 kRead = 1, kWrite = 2;  // record.h

    NumberMap<Use> uses_;  // by number of the block
    bool is_recorded_ = false;
};

}  // namespace memscope::kernel
