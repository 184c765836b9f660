#include "kernel/site_peaks.h"

#include <algorithm>
#include <utility>

#include "kernel/wrapping.h"

namespace memscope::kernel {

void PoolPeaks::close(u32 step, u32 next, u64 ts) noexcept {
    keep_higher(step);
    if (step <= kWarmUp) now_.early = plus(now_.early, now_.fresh);
    now_.fresh = 0;
    begin(open_, next, ts);  // a step's peak is at first the level at its start
    if (next - step < 2 || next <= kWarmUp + 1) return;
    keep_higher(std::max(step, kWarmUp) + 1);
    begin(open_, next, ts);
}

// Of equal levels the first step's stays, as in whatever looks for the highest of many rows.
void PoolPeaks::keep_higher(u32 step) noexcept {
    if (step <= kWarmUp || open_.number == 0) return;
    if (closed_.number != 0 && open_.sums.level <= closed_.sums.level) return;
    std::swap(open_, closed_);
    closed_.step = step;
}

void PoolPeaks::append(PoolPeakTable& table, PoolKey pool) const {
    const auto add = [&](const Peak& peak, PeakOf of, PeakOf sites) {
        if (peak.number == 0) return;
        table.device_type.push_back(pool.device_type);
        table.device.push_back(pool.device);
        table.pool.push_back(pool.pool);
        table.peak.push_back(static_cast<u8>(of));
        table.sites.push_back(static_cast<u8>(sites));
        table.step.push_back(peak.step);
        table.ts.push_back(peak.ts);
        table.bytes.push_back(peak.sums.level);
        table.fresh_bytes.push_back(peak.sums.fresh);
        table.early_bytes.push_back(peak.sums.early);
    };
    add(highest_, PeakOf::ALL, PeakOf::ALL);
    add(closed_, PeakOf::TYPICAL, is_same() ? PeakOf::ALL : PeakOf::TYPICAL);
}

void SitePeaks::append(SitePeakTable& table, const PoolPeaks& pool, u32 site, const Sites::Site& live) const {
    append(table, pool.highest_, PeakOf::ALL, site, live);
    if (!pool.is_same()) append(table, pool.closed_, PeakOf::TYPICAL, site, live);
}

void SitePeaks::append(SitePeakTable& table, const PoolPeaks::Peak& peak, PeakOf what, u32 site,
                       const Sites::Site& live) const {
    if (peak.number == 0) return;
    const bool is_copied = site < copies_.size() && copies_[site][peak.place].number == peak.number;
    const Copy held = is_copied ? copies_[site][peak.place] : of(live, peak.number);
    if (held.bytes == 0 && held.blocks == 0) return;
    table.site.push_back(site);
    table.peak.push_back(static_cast<u8>(what));
    table.bytes.push_back(held.bytes);
    table.blocks.push_back(static_cast<i64>(held.blocks));
}

}  // namespace memscope::kernel
