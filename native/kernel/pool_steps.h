// The steps of one pool: what it held at the start and the end of each, the most and the least in between.
//
//   open   the current step. Its row is handed out, too; the table says that it is not complete.
//   thin   beyond kMaxStepRows rows, neighbours become one, except those of the steps in which the pool fell furthest,
//          and least, below its most: upstream's gaps. 120 bytes a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "kernel/pool_count.h"
#include "kernel/pool_key.h"
#include "kernel/tables.h"
#include "kernel/wrapping.h"
#include "record/record.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxStepRows = 1u << 14;

class PoolSteps {
public:
    // The pool's first event is in this step, which began at ts.
    PoolSteps(u32 step, u64 ts) noexcept;

    // The first time that any event told: the open step begins with it.
    void begin_at(u64 ts) noexcept { open_.start_ts = ts; }

    void allocated(i64 size) noexcept {
        open_.allocs += 1;
        open_.alloc_bytes += static_cast<u64>(size);
        open_.end_bytes = plus(open_.end_bytes, size);
    }
    void freed(i64 size) noexcept {
        open_.frees += 1;
        open_.freed_bytes += static_cast<u64>(size);
        open_.end_bytes = minus(open_.end_bytes, size);
    }
    // Behind every event that changed the level. While an address is given out again there is no level in between.
    void note_level() noexcept {
        open_.min_bytes = open_.has_level ? std::min(open_.min_bytes, open_.end_bytes) : open_.end_bytes;
        open_.most_bytes = open_.has_level ? std::max(open_.most_bytes, open_.end_bytes) : open_.end_bytes;
        open_.has_level = true;
        open_.peak_bytes = std::max(open_.peak_bytes, open_.end_bytes);
    }
    // reserved: what the pool has from the driver, as it says.
    void note_reserved(i64 reserved) noexcept {
        open_.end_reserved = reserved;
        open_.peak_reserved = std::max(open_.peak_reserved, reserved);
    }

    // Behind every MALLOC and FREE that is told when it happens. used: what the pool has given out, as it says.
    void note_used(i64 used) noexcept { count_.compare(used, open_.end_bytes); }
    void forget_count() noexcept { count_.forget(); }

    // A step that is a range begins here: the levels since the range before are those of no step. Its other numbers
    // count to this one, so that nothing is left out of sums and peaks.
    void forget_levels() noexcept;

    // The open step ends at ts and `next` begins; the `silent` steps before that, in which nothing happened, have rows.
    void close(u32 next, u32 silent, u64 ts);

    void shrink() { closed_.shrink_to_fit(); }

    i64 live_bytes() const noexcept { return open_.end_bytes; }

    // last_ts: up to where the open step is known.
    void append(StepTable& table, PoolKey pool, u64 last_ts) const;

private:
    struct Row {
        u32 step = 0;
        i64 start_bytes = 0, end_bytes = 0, peak_bytes = 0, min_bytes = 0, most_bytes = 0;
        i64 start_reserved = kUnknown, end_reserved = kUnknown, peak_reserved = kUnknown;
        i64 end_unseen = 0, end_missing = 0;
        u64 allocs = 0, frees = 0, alloc_bytes = 0, freed_bytes = 0;
        u64 start_ts = 0, end_ts = 0;

        u32 steps = 1;           // in this row, of which `step` is the last
        bool has_level = false;  // something happened in it
        // The next step, with nothing happened in it yet.
        Row next(u32 number, u64 ts) const noexcept;
        // `later` is of the steps behind it.
        void join(const Row& later) noexcept;
    };

    void note_gap(const Row& row);
    void thin();
    static void append(StepTable& table, PoolKey pool, const Row& row, u64 end_ts, bool complete);

    // The open row up to now.
    Row latest() const noexcept;

    Row open_;
    PoolCount count_;
    std::vector<Row> closed_;
    u32 stride_ = 1;  // rows of the same cell of so many steps are one
    std::optional<Row> smallest_gap_, largest_gap_;
};

}  // namespace memscope::kernel
