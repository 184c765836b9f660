// What each site held when its pool's level was at its highest: of all, and of the closed steps after the warm-up.
//
//   copy     a site notes what it holds when it changes for the first time behind a peak. Until then what it holds now
//            is what it held at the peak, so that a new peak costs nothing, however many there are while a pool climbs
//   number   of a peak: a site's copy is of it, or the site has not changed since
//   steps    the open step has a peak of its own, which becomes that of the closed ones when the step closes higher:
//            then the two change their places, and no site is touched
//   born     of a peak's bytes, how many were allocated in its own step, and how many in the warm-up before it
//
// Memory: 72 bytes for each site.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernel/pool_key.h"
#include "kernel/sites.h"
#include "kernel/tables.h"
#include "kernel/wrapping.h"
#include "record/record.h"

namespace memscope::kernel {

// The peaks of one pool.
class PoolPeaks {
public:
    static constexpr u32 kWarmUp = 1;  // its last step (analysis/steps.py)

    void allocated(i64 size) noexcept {
        now_.level = plus(now_.level, size);
        now_.fresh = plus(now_.fresh, size);
    }
    void freed(i64 size, u32 birth_step, u32 open_step) noexcept {
        now_.level = minus(now_.level, size);
        if (birth_step == open_step)
            now_.fresh = minus(now_.fresh, size);
        else if (birth_step <= kWarmUp)
            now_.early = minus(now_.early, size);
    }
    // Behind every event that changed the level, as PoolSteps.
    void note_level(u32 step, u64 ts) noexcept {
        if (now_.level > open_.sums.level) begin(open_, step, ts);
        if (now_.level > highest_.sums.level) begin(highest_, step, ts);
    }
    i64 level() const noexcept { return now_.level; }
    i64 highest() const noexcept { return highest_.sums.level; }
    // The open step ends, at ts, and `next` begins; in the steps between the two nothing happened.
    void close(u32 step, u32 next, u64 ts) noexcept;

    void append(PoolPeakTable& table, PoolKey pool) const;

private:
    friend class SitePeaks;
    struct Sums {
        // fresh: of the open step; early: of the warm-up, if that is over. It stands between the two that an allocation
        // changes: beside each other they would be changed as one word, which waits for an end's half of it.
        i64 level = 0, early = 0, fresh = 0;
    };
    struct Peak {
        u8 place;        // of the copies
        u64 number = 0;  // 0: there is none
        u32 step = 0;
        u64 ts = 0;
        Sums sums{};
    };

    void begin(Peak& peak, u32 step, u64 ts) noexcept {
        peak.number = ++numbers_;
        peak.step = step;
        peak.ts = ts;
        peak.sums = now_;
    }
    void keep_higher(u32 step) noexcept;
    // Both are of the same moment.
    bool is_same() const noexcept { return highest_.step == closed_.step && highest_.sums.level == closed_.sums.level; }

    Sums now_;
    u64 numbers_ = 0;
    Peak highest_{0}, open_{1}, closed_{2};
};

// What the sites of one ring held at the peaks of their pools.
class SitePeaks {
public:
    // A site is about to change. live: as it still is.
    void before_change(const PoolPeaks& pool, u32 site, Sites::Site& live) {
        if (live.peak_seen == pool.numbers_) return;  // no peak since it changed last
        live.peak_seen = pool.numbers_;
        if (site >= copies_.size()) copies_.resize(site + std::size_t{1});
        for (const PoolPeaks::Peak* peak : {&pool.highest_, &pool.open_, &pool.closed_}) {
            Copy& copy = copies_[site][peak->place];
            if (copy.number != peak->number) copy = of(live, peak->number);
        }
    }
    void shrink() { copies_.shrink_to_fit(); }
    void append(SitePeakTable& table, const PoolPeaks& pool, u32 site, const Sites::Site& live) const;

private:
    struct Copy {
        u64 number = 0;  // of the peak
        i64 bytes = 0;
        u64 blocks = 0;
    };
    static Copy of(const Sites::Site& live, u64 number) noexcept {
        return {number, live.live_bytes, live.allocs - live.frees};
    }
    void append(SitePeakTable& table, const PoolPeaks::Peak& peak, PeakOf of, u32 site, const Sites::Site& live) const;

    std::vector<std::array<Copy, 3>> copies_;  // by site
};

}  // namespace memscope::kernel
