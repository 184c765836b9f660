// What a BlockTracker is asked for once in a while: its tables.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernel/block_tracker.h"

namespace memscope::kernel {

namespace {

template <typename Table>
void put(Table& table, PoolKey pool, u32 step) {
    table.device_type.push_back(pool.device_type);
    table.device.push_back(pool.device);
    table.pool.push_back(pool.pool);
    table.step.push_back(step);
}

}  // namespace

RingFacts BlockTracker::facts() const noexcept {
    RingFacts facts;
    clock_.describe(facts);
    facts.events = events_;
    facts.allocs = allocs_;
    facts.launches = launches_;
    facts.window = windows_ != nullptr ? window_ : 0;
    const SiteSums* sums = windows_ != nullptr ? windows_.get() : sums_.get();
    facts.sum_stride = sums != nullptr ? sums->stride() : 1;
    return facts;
}

SiteTable BlockTracker::sites() const {
    SiteTable table;
    sites_.append(table);
    return table;
}

StepTable BlockTracker::steps() const {
    StepTable table;
    for (const auto& pool : pools_) pool->steps.append(table, pool->key, clock_.last_ts());
    return table;
}

AnomalyTable BlockTracker::anomalies() const {
    AnomalyTable table;
    anomalies_.append(table);
    return table;
}

BeginTable BlockTracker::begins() const { return clock_.begins(); }

SumTable BlockTracker::sums() const {
    SumTable table;
    if (windows_ != nullptr)
        windows_->append(table, window_);
    else if (sums_ != nullptr)
        sums_->append(table, clock_.step());
    return table;
}

AgeTable BlockTracker::ages() const {
    AgeTable table;
    if (windows_ != nullptr)
        windows_->append(table, window_);
    else if (sums_ != nullptr)
        sums_->append(table, clock_.step());
    return table;
}

LiveTable BlockTracker::live() const { return blocks(false); }

LiveTable BlockTracker::held() const { return blocks(true); }

LiveTable BlockTracker::blocks(bool with_late) const {
    struct One {
        const Block* block;
        bool late;
    };
    LiveTable table;
    std::vector<One> found;
    for (const auto& pool : pools_) {
        found.clear();
        pool->blocks.each([&found](const Block& block) { found.push_back(One{&block, false}); });
        if (with_late)
            for (const Block& block : pool->late) found.push_back(One{&block, true});
        std::sort(found.begin(), found.end(), [](const One& a, const One& b) { return a.block->id < b.block->id; });
        for (const auto& [block, late] : found) append(table, *pool, *block, late);
    }
    return table;
}

void BlockTracker::append(LiveTable& table, const PoolBlocks& pool, const Block& block, bool late) const {
    table.device_type.push_back(pool.key.device_type);
    table.device.push_back(pool.key.device);
    table.pool.push_back(pool.key.pool);
    table.ptr.push_back(block.address());
    table.size.push_back(block.size);
    table.stack_py.push_back(sites_[block.site].stack_py);
    table.stack_c.push_back(sites_[block.site].stack_c);
    table.step.push_back(block.step);
    table.ts.push_back(block.ts);
    table.tid.push_back(block.tid);
    table.flags.push_back(block.flags);
    table.allocation_id.push_back(block.id);
    table.site.push_back(block.site);
    table.attr.push_back(pool.key.pool == static_cast<u8>(Pool::HAL) ? block.attr : 0);
    table.launches.push_back(block.launches);
    table.owner.push_back(owners_.names().id(block.owner));
    table.late.push_back(late ? Bool::YES : Bool::NO);
}

OwnerTable BlockTracker::owners() const {
    OwnerTable table;
    owners_.names().append(table);
    return table;
}

OwnerSumTable BlockTracker::owner_sums() const {
    OwnerSumTable table;
    for (const auto& pool : pools_)
        pool->owners.owners.each_row(clock_.step(), [&](const PoolOwners::Row& row) {
            put(table, pool->key, row.step);
            table.owner.push_back(owners_.names().id(row.owner));
            table.end_bytes.push_back(row.end_bytes);
            table.peak_bytes.push_back(row.peak_bytes);
        });
    return table;
}

OwnerPeakTable BlockTracker::owner_peaks() const {
    OwnerPeakTable table;
    for (const auto& pool : pools_)
        pool->owners.owners.each_at_peak([&](u32 step, OwnerNumber owner, i64 bytes) {
            put(table, pool->key, step);
            table.owner.push_back(owners_.names().id(owner));
            table.bytes.push_back(bytes);
        });
    return table;
}

OwnedSiteSumTable BlockTracker::owned_site_sums() const {
    OwnedSiteSumTable table;
    for (const auto& pool : pools_) {
        if (!pool->owners.has_pairs) continue;
        pool->owners.pairs.each_row(clock_.step(), [&](const PoolOwners::Row& row) {
            put(table, pool->key, row.step);
            table.owner.push_back(owners_.names().id(owners_.sites()[row.owner].owner));
            table.site.push_back(owners_.sites()[row.owner].site);
            table.end_bytes.push_back(row.end_bytes);
            table.peak_bytes.push_back(row.peak_bytes);
        });
    }
    return table;
}

OwnedSitePeakTable BlockTracker::owned_site_peaks() const {
    OwnedSitePeakTable table;
    for (const auto& pool : pools_) {
        if (!pool->owners.has_pairs) continue;
        pool->owners.pairs.each_at_peak([&](u32 step, OwnerNumber pair, i64 bytes) {
            put(table, pool->key, step);
            table.owner.push_back(owners_.names().id(owners_.sites()[pair].owner));
            table.site.push_back(owners_.sites()[pair].site);
            table.bytes.push_back(bytes);
        });
    }
    return table;
}

PoolPeakTable BlockTracker::pool_peaks() const {
    PoolPeakTable table;
    for (const auto& pool : pools_) pool->peaks.append(table, pool->key);
    return table;
}

SitePeakTable BlockTracker::site_peaks() const {
    SitePeakTable table;
    const PoolBlocks* pool = nullptr;
    for (u32 site = 0; site < sites_.size(); ++site) {
        const Sites::Site& live = sites_[site];
        if (pool == nullptr || !(pool->key == live.pool))
            pool = std::find_if(pools_.begin(), pools_.end(), [&](const auto& one) {
                       return one->key == live.pool;
                   })->get();
        site_peaks_.append(table, pool->peaks, site, live);
    }
    return table;
}

InefficiencyTables BlockTracker::inefficiencies() const {
    InefficiencyTables tables;
    for (const auto& pool : pools_)
        inefficiency_.append(tables.rows, tables.floors, pool->key, pool->needs, pool->peaks, pool->blocks, sites_);
    return tables;
}

PhaseTables BlockTracker::phases() const {
    PhaseTables tables;
    for (const auto& pool : pools_)
        if (pool->owners.phases != nullptr)
            pool->owners.phases->append(tables.rows, tables.owners, pool->key, phases_.known(), owners_.names());
    return tables;
}

LifeTable BlockTracker::going_lives() const {
    LifeTable table;
    if (lives_ == nullptr) return table;
    std::vector<std::pair<const Block*, PoolKey>> going;
    for (const auto& pool : pools_)
        pool->blocks.each([&](const Block& block) { going.emplace_back(&block, pool->key); });
    std::sort(going.begin(), going.end(), [](const auto& a, const auto& b) { return a.first->id < b.first->id; });
    const auto rows = std::make_unique<LifeRows>();
    for (const auto& [block, pool] : going)
        lives_->append(table, *rows, *block, pool, belongs_of(*block, inefficiency_.shown(*block)));
    rows->flush(table);
    return table;
}

}  // namespace memscope::kernel
