#include "kernel/sites.h"

#include <algorithm>
#include <utility>

#include "kernel/wrapping.h"

namespace memscope::kernel {

std::size_t SiteIndex::probe(const std::vector<Slot>& slots, u64 stack_py, u64 stack_c) noexcept {
    const std::size_t mask = slots.size() - 1;
    std::size_t at = static_cast<std::size_t>(combine64(stack_py, stack_c)) & mask;
    while (slots[at].site != kNone && (slots[at].stack_py != stack_py || slots[at].stack_c != stack_c))
        at = (at + 1) & mask;
    return at;
}

u32 SiteIndex::find(u64 stack_py, u64 stack_c) const noexcept {
    return slots_.empty() ? kNone : slots_[probe(slots_, stack_py, stack_c)].site;
}

void SiteIndex::add(u64 stack_py, u64 stack_c, u32 site) {
    if ((count_ + 1) * 2 > slots_.size()) {
        std::vector<Slot> larger(slots_.empty() ? 16 : slots_.size() * 2);
        for (const Slot& slot : slots_)
            if (slot.site != kNone) larger[probe(larger, slot.stack_py, slot.stack_c)] = slot;
        slots_ = std::move(larger);
    }
    slots_[probe(slots_, stack_py, stack_c)] = Slot{stack_py, stack_c, site};
    ++count_;
}

u32 Sites::obtain(SiteIndex& of_pool, PoolKey pool, u64 stack_py, u64 stack_c, i64 size, Anomalies& anomalies) {
    u32 id = of_pool.find(stack_py, stack_c);
    if (id != SiteIndex::kNone) return id;
    if (sites_.size() >= max_sites_ && (stack_py != 0 || stack_c != 0)) {
        anomalies.count(Anomaly::FOLDED_SITE, size);
        return obtain(of_pool, pool, 0, 0, size, anomalies);
    }
    id = static_cast<u32>(sites_.size());
    Site& added = sites_.emplace_back();
    added.pool = pool;
    added.stack_py = stack_py;
    added.stack_c = stack_c;
    of_pool.add(stack_py, stack_c, id);
    return id;
}

void Sites::allocated(u32 id, i64 size, u32 step, u64 ts, u64 order) noexcept {
    Site& site = sites_[id];
    if (site.allocs == 0) {
        site.first_step = step;
        site.first_ts = ts;
    }
    site.last_step = step;
    site.last_ts = ts;
    site.order = order;
    site.allocs += 1;
    site.alloc_bytes += static_cast<u64>(size);
    site.live_bytes = plus(site.live_bytes, size);
    site.peak_bytes = std::max(site.peak_bytes, site.live_bytes);
}

void Sites::freed(u32 id, i64 size) noexcept {
    Site& site = sites_[id];
    site.frees += 1;
    site.freed_bytes += static_cast<u64>(size);
    site.live_bytes = minus(site.live_bytes, size);
}

void Sites::append(SiteTable& table) const {
    for (const Site& site : sites_) {
        table.device_type.push_back(site.pool.device_type);
        table.device.push_back(site.pool.device);
        table.pool.push_back(site.pool.pool);
        table.stack_py.push_back(site.stack_py);
        table.stack_c.push_back(site.stack_c);
        table.allocs.push_back(site.allocs);
        table.alloc_bytes.push_back(site.alloc_bytes);
        table.frees.push_back(site.frees);
        table.freed_bytes.push_back(site.freed_bytes);
        table.live_blocks.push_back(static_cast<i64>(site.allocs - site.frees));
        table.live_bytes.push_back(site.live_bytes);
        table.peak_bytes.push_back(site.peak_bytes);
        table.first_step.push_back(site.first_step);
        table.last_step.push_back(site.last_step);
        table.first_ts.push_back(site.first_ts);
        table.last_ts.push_back(site.last_ts);
        table.order.push_back(site.order);
    }
}

}  // namespace memscope::kernel
