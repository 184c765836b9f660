// What a pool itself says it has given out, against the sum of its blocks that we know.
//
//   unseen   what it had given out before its first event that we have, and has still: recording began in the middle of
//            the program, or the process was forked. It never grows. What comes back of it has no MALLOC, and neither
//            has a block whose FREE is lost a FREE: of such a pool a lost FREE makes it less.
//   missing  what the pool says, less our blocks and the unseen: blocks whose MALLOC we lack; below 0, whose FREE.
//
// A pool counts, then its event is written, and another thread may come in between: the order in the ring is not always
// that of the counts. So a difference counts once it has been there for kSureEvents events in a row, and the unseen are
// the least of as many at the start.
#pragma once

#include <algorithm>

#include "kernel/event_columns.h"
#include "kernel/wrapping.h"
#include "record/record.h"

namespace memscope::kernel {

class PoolCount {
public:
    static constexpr u32 kSureEvents = 16;

    // Behind every MALLOC and FREE that is told when it happens. used: as the pool says, kUnknown when it does not;
    // ours: our sum.
    void compare(i64 used, i64 ours) noexcept {
        if (used < 0 || used > kMaxBlockBytes) return;
        const i64 more = minus(used, ours);
        if (is_steady_ && more == unseen_) return;  // nearly always
        if (heard_ < kSureEvents) {
            unseen_ = std::max<i64>(heard_ == 0 ? more : std::min(unseen_, more), 0);
            heard_ += 1;
        }
        off_ = minus(more, unseen_);
        in_a_row_ = off_ == 0 ? 0 : std::min(in_a_row_ + 1, kSureEvents);
        if (off_ < 0 && unseen_ > 0 && in_a_row_ == kSureEvents) give_back();
        is_steady_ = heard_ == kSureEvents && in_a_row_ == 0;
    }

    // Blocks may come and go that nobody tells.
    void forget() noexcept { *this = PoolCount{}; }

    i64 unseen() const noexcept { return unseen_; }
    i64 missing() const noexcept { return in_a_row_ < kSureEvents ? 0 : off_; }

private:
    void give_back() noexcept {
        const i64 bytes = off_ < -unseen_ ? unseen_ : -off_;
        unseen_ -= bytes;
        off_ += bytes;
        if (off_ == 0) in_a_row_ = 0;
    }

    i64 unseen_ = 0, off_ = 0;
    u32 heard_ = 0;     // up to kSureEvents
    u32 in_a_row_ = 0;  // that are off
    bool is_steady_ = false;
};

}  // namespace memscope::kernel
