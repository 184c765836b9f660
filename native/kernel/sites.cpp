#include "kernel/sites.h"

#include <utility>

namespace memscope::kernel {

std::size_t SiteIndex::probe(const Sites& sites, u64 stack_py, u64 stack_c) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>(combine64(stack_py, stack_c)) & mask;
    while (slots_[at] != kNone && (sites[slots_[at]].stack_py != stack_py || sites[slots_[at]].stack_c != stack_c))
        at = (at + 1) & mask;
    return at;
}

u32 SiteIndex::find(const Sites& sites, u64 stack_py, u64 stack_c) const noexcept {
    return slots_.empty() ? kNone : slots_[probe(sites, stack_py, stack_c)];
}

void SiteIndex::add(const Sites& sites, u32 site) {
    const auto place = [&](u32 one) { slots_[probe(sites, sites[one].stack_py, sites[one].stack_c)] = one; };
    if ((count_ + 1) * 2 > slots_.size()) {
        const std::vector<u32> old = std::move(slots_);
        slots_ = std::vector<u32>(old.empty() ? 16 : old.size() * 2, kNone);
        for (const u32 one : old)
            if (one != kNone) place(one);
    }
    place(site);
    ++count_;
}

u32 Sites::obtain(SiteIndex& of_pool, PoolKey pool, u64 stack_py, u64 stack_c, i64 size, Anomalies& anomalies) {
    u32 id = of_pool.find(*this, stack_py, stack_c);
    if (id != SiteIndex::kNone) return id;
    if (sites_.size() >= max_sites_ && (stack_py != 0 || stack_c != 0)) {
        anomalies.count(Anomaly::FOLDED_SITE, size);
        return obtain(of_pool, pool, 0, 0, size, anomalies);
    }
    id = static_cast<u32>(sites_.size());
    firsts_.emplace_back();
    Site& added = sites_.emplace_back();
    added.pool = pool;
    added.stack_py = stack_py;
    added.stack_c = stack_c;
    of_pool.add(*this, id);
    return id;
}

void Sites::append(SiteTable& table) const {
    for (u32 id = 0; id < size(); ++id) {
        const Site& site = sites_[id];
        table.device_type.push_back(site.pool.device_type);
        table.device.push_back(site.pool.device);
        table.pool.push_back(site.pool.pool);
        table.stack_py.push_back(site.stack_py);
        table.stack_c.push_back(site.stack_c);
        table.allocs.push_back(site.allocs);
        table.frees.push_back(site.frees);
        table.live_blocks.push_back(static_cast<i64>(site.allocs - site.frees));
        table.live_bytes.push_back(site.live_bytes);
        table.first_step.push_back(firsts_[id].step);
        table.last_step.push_back(site.last_step);
        table.first_ts.push_back(firsts_[id].ts);
    }
}

}  // namespace memscope::kernel
