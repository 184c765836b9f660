// The sites of one ring: who allocates (pool, Python stack, native stack), and what it has allocated and freed in all.
//
// About 96 bytes each with its index, at most max_sites; further stacks are folded into a site of their pool without
// a stack.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel/anomalies.h"
#include "kernel/pool_key.h"
#include "kernel/tables.h"
#include "kernel/wrapping.h"
#include "record/record.h"

namespace memscope::kernel {

class SiteIndex;

class Sites {
public:
    struct alignas(64) Site {  // what each event of it looks at, one line of the cache
        u64 stack_py = 0, stack_c = 0;
        u64 allocs = 0, frees = 0;
        i64 live_bytes = 0;
        u64 peak_seen = 0;  // of site_peaks.h
        u32 last_step = 0;
        PoolKey pool;
    };
    static_assert(sizeof(Site) == 64);

    explicit Sites(std::size_t max_sites) : max_sites_(max_sites) {}

    // The number of a pool's site, which is about to allocate `size` bytes.
    u32 obtain(SiteIndex& of_pool, PoolKey pool, u64 stack_py, u64 stack_c, i64 size, Anomalies& anomalies);

    void allocated(u32 id, i64 size, u32 step, u64 ts) noexcept {
        Site& site = sites_[id];
        if (site.allocs == 0) firsts_[id] = {ts, step};
        site.last_step = step;
        site.allocs += 1;
        site.live_bytes = plus(site.live_bytes, size);
    }
    void freed(u32 id, i64 size) noexcept {
        Site& site = sites_[id];
        site.frees += 1;
        site.live_bytes = minus(site.live_bytes, size);
    }

    const Site& operator[](u32 site) const noexcept { return sites_[site]; }
    Site& at(u32 site) noexcept { return sites_[site]; }
    [[gnu::always_inline]] void fetch(u32 site) const noexcept { __builtin_prefetch(&sites_[site], 1); }
    u32 size() const noexcept { return static_cast<u32>(sites_.size()); }
    void shrink() {
        sites_.shrink_to_fit();
        firsts_.shrink_to_fit();
    }
    void append(SiteTable& table) const;

private:
    struct First {
        u64 ts = 0;
        u32 step = 0;
    };

    const std::size_t max_sites_;
    std::vector<Site> sites_;
    std::vector<First> firsts_;  // allocation of each
};

// The sites of one pool by their two stacks, which stand in `sites`: open addressing, only grows.
class SiteIndex {
public:
    static constexpr u32 kNone = ~u32{0};

    u32 find(const Sites& sites, u64 stack_py, u64 stack_c) const noexcept;  // kNone: not there
    void add(const Sites& sites, u32 site);                                  // must not be there

private:
    // The slot that holds the two stacks, or the empty one where they belong.
    std::size_t probe(const Sites& sites, u64 stack_py, u64 stack_c) const noexcept;

    std::vector<u32> slots_;  // numbers of sites
    std::size_t count_ = 0;
};

}  // namespace memscope::kernel
