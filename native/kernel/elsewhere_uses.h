// What streams other than its own do to a block of a card, of which its own stream is not known to wait.
//
// In: each access to the block, in the order of the host, and whether it is launched on the stream that the block was
// allocated for. Out: whether all that was launched before is over where that stream stands now. Events are not
// recorded, so it is known by two things alone:
//   * what is launched on one stream runs in that order;
//   * the program has no data race: of two accesses to a block on two streams of which one writes, the later waits for
//     the earlier.
// So a read of the own stream waits for the writes elsewhere before it, and a write for all that was done elsewhere.
#pragma once

#include "record/record.h"

namespace memscope::kernel {

class ElsewhereUses {
public:
    // how: of an ACCESS, 0 unknown, 1 read, 2 write.
    void access(bool is_elsewhere, u32 how) noexcept {
        if (!is_elsewhere)
            open_ = how == kWrite ? u8{0} : static_cast<u8>(open_ & kReads);
        else if (how == kWrite)
            open_ = kWrites;  // it has waited for what was read elsewhere
        else
            open_ |= kReads;
    }
    bool are_over() const noexcept { return open_ == 0; }

private:
    static constexpr u32 kWrite = 2;
    static constexpr u8 kReads = 1, kWrites = 2;  // what is waited for no sooner than by a write; by any access
    u8 open_ = 0;
};

}  // namespace memscope::kernel
