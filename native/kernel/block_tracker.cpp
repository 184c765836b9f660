#include "kernel/block_tracker.h"

#include <algorithm>
#include <utility>

namespace memscope::kernel {

namespace {

// How many events ahead of its turn the entry of an address is fetched, then its block, then what belongs to that: with
// many live blocks every event misses the cache several times, and waiting for one at a time halves the speed
// (benchmarks/folds.py, churn). With few, all is in the cache, and asking for it costs more than it saves.
constexpr std::size_t kEntryAhead = 24, kBlockAhead = 16, kRestAhead = 8;
constexpr std::size_t kManyBlocks = 4096;  // 350 KiB, which the second cache holds

// Where a block stands in its pool's map.
u64 place_of(u64 ptr, u8 flags) noexcept { return has(flags, Flag::HANDLE) ? ptr | kHandleBit : ptr; }

PoolKey pool_of(const EventColumns& events, std::size_t row) noexcept {
    return PoolKey{events.device[row], events.device_type[row], events.pool[row]};
}

}  // namespace

BlockTracker::BlockTracker(std::size_t max_sites, std::size_t max_runs, bool lives)
    : max_runs_(max_runs), sites_(max_sites) {
    if (max_runs_ != 0) sums_ = std::make_unique<SiteSums>(max_runs_);
    if (lives) {
        lives_ = std::make_unique<BlockLives>();
        running_ = std::make_unique<Running>();
    }
}

// Always inlined, as all that fetches: of a function that does nothing else the compiler believes that it does nothing.
[[gnu::always_inline]] inline void BlockTracker::fetch_ahead(const PoolBlocks& pool, const EventColumns& events,
                                                             std::size_t row) const {
    const auto begins = [&events](std::size_t at) { return events.kind[at] == static_cast<u8>(Kind::MALLOC); };
    pool.blocks.fetch_entry(events.ptr[row + kEntryAhead]);
    // At an address that is allocated then nothing lives, or what ends before that, and is fetched for its end.
    if (!begins(row + kBlockAhead)) pool.blocks.fetch_block(events.ptr[row + kBlockAhead]);
    if (begins(row + kRestAhead)) return;
    const Block* block = pool.blocks.glance(events.ptr[row + kRestAhead]);
    if (block == nullptr) return;
    sites_.fetch(block->site);
    if (sums_ != nullptr) sums_->fetch(block->site);
    if (lives_ != nullptr) lives_->fetch(*block);
}

void BlockTracker::feed(const EventColumns& events, EnrichTable* enriched) {
    PoolBlocks* pool = nullptr;  // of the event before: nearly always the same
    const bool has_counts = events.used.is_there();
    for (std::size_t row = 0; row < events.n; ++row) {
        const Kind kind = static_cast<Kind>(events.kind[row]);
        const u32 step = StepClock::step_of(events, row);
        if (!clock_.is_steady(step, events.ts[row], events.flags[row]))
            hear(events, row, step);
        else if (windows_ != nullptr && clock_.last_ts() >= window_ends_)
            advance_window();
        if (pool != nullptr && pool->blocks.size() >= kManyBlocks && row + kEntryAhead < events.n)
            fetch_ahead(*pool, events, row);

        Outcome outcome;
        outcome.size = events.size[row];
        if (kind == Kind::MALLOC || kind == Kind::FREE) {
            const PoolKey key = pool_of(events, row);
            if (pool == nullptr || !(pool->key == key)) pool = obtain_pool(key);
            if (pool == nullptr) {
                anomalies_.count(Anomaly::LEFT_OUT_POOL);
            } else {
                if (clock_.is_late(step)) anomalies_.count(Anomaly::LATE_STEP);
                if (kind == Kind::MALLOC)
                    on_malloc(*pool, events, row, outcome);
                else
                    on_free(*pool, events, row, outcome);
                // What no device has stands in a damaged record; sums over all pools and ranks must not overflow.
                if (const i64 reserved = events.total[row]; reserved >= 0 && reserved <= kMaxBlockBytes)
                    pool->steps.note_reserved(reserved);
                if (has_counts && !has(events.flags[row], Flag::SHADOW)) pool->steps.note_used(events.used[row]);
                outcome.live_after = pool->steps.live_bytes();
            }
        } else if (kind == Kind::ACCESS) {
            on_access(events, row, outcome);
        } else {
            on_other(events, row, step);
        }
        if (enriched != nullptr) enrich(*enriched, outcome);
    }
    events_ += events.n;
}

void BlockTracker::enrich(EnrichTable& table, const Outcome& outcome) {
#define X(type, name) table.name.push_back(outcome.name);
    MEMSCOPE_ENRICH_COLUMNS(X)
#undef X
}

// What every event says of time and steps, whatever its kind.
void BlockTracker::hear(const EventColumns& events, std::size_t row, u32 step) {
    const bool is_first_time = clock_.tell(events.ts[row], events.flags[row]);
    if (!clock_.has_started()) {
        clock_.start(step);
        if (sums_ != nullptr) {
            sums_->start(step);
            windows_ = std::make_unique<SiteSums>(max_runs_);
            windows_->start(window_ = 1);
        }
    }
    if (is_first_time)
        for (const auto& pool : pools_) pool->steps.begin_at(clock_.step_start_ts());
    if (windows_ != nullptr) advance_window();
    if (step > clock_.step()) close_steps(step, follows() ? 1 : kMaxSilentSteps);
    if (clock_.hear(step))
        for (const auto& pool : pools_) pool->steps.forget_levels();
}

void BlockTracker::on_other(const EventColumns& events, std::size_t row, u32 step) {
    if (running_ != nullptr) running_->hear(events, row);
    switch (static_cast<Kind>(events.kind[row])) {
        case Kind::STEP:
            clock_.boundary(step, events.aux[row], events.stack_py[row]);
            break;
        case Kind::RANGE_END:
            if (clock_.ends_step(step, events.aux[row])) close_steps(step + 1, 1);
            on_phase(phases_.hear_range(events, row));
            break;
        case Kind::RANGE_START:
        case Kind::CALL:
            on_phase(phases_.hear_range(events, row));
            break;
        case Kind::KERNEL_LAUNCH:
            launches_ += 1;
            break;
        case Kind::OP_START:
            inefficiency_.start(events.tid[row], events.aux[row], events.device_type[row], events.device[row]);
            break;
        case Kind::OP_END:
            inefficiency_.end(events.tid[row], events.aux[row]);
            break;
        case Kind::GAP:
            lose_sight();
            break;
        case Kind::SYSTEM:
            if (const u32 what = events.aux[row]; what == static_cast<u32>(SystemEvent::START_TRACE) ||
                                                  what == static_cast<u32>(SystemEvent::STOP_TRACE)) {
                lose_sight();
                for (const auto& pool : pools_) pool->steps.forget_count();
            }
            break;
        case Kind::LABEL_PUSH:
            owners_.push(events.tid[row], events.aux[row], events.name[row], anomalies_);
            if (events.aux[row] == kProcessLevel && events.name[row] != 0)
                on_phase(phases_.begin_label(events.tid[row], owners_.component_of(events.tid[row]), events.name[row]));
            break;
        case Kind::LABEL_POP:
            owners_.pop(events.tid[row], events.aux[row], events.name[row]);
            if (events.aux[row] == kProcessLevel) on_phase(phases_.end_label(events.tid[row], events.name[row]));
            break;
        case Kind::LABEL_ADDR:
            on_label(events, row);
            break;
        case Kind::MAP:
            if (lives_ != nullptr) lives_->map(events, row, clock_.step(), allocs_);
            break;
        case Kind::UNMAP:
            if (lives_ != nullptr) lives_->unmap(events.ptr[row], events.device[row]);
            break;
        default:
            break;
    }
}

// Events are missing.
void BlockTracker::lose_sight() {
    inefficiency_.forget();
    on_phase(phases_.forget(), false);
}

void BlockTracker::on_phase(Phases::Heard heard, bool is_seen) {
    if (heard == Phases::Heard::LEFT_OUT) anomalies_.count(Anomaly::LEFT_OUT_PHASE);
    if (heard != Phases::Heard::CHANGE) return;
    for (const auto& pool : pools_) {
        if (pool->owners.phases == nullptr) pool->owners.phases = std::make_unique<PoolPhases>(pool->owners.owners);
        pool->owners.phases->follow(phases_.runs(), is_seen, allocs_, clock_.step());
    }
}

void BlockTracker::on_malloc(PoolBlocks& pool, const EventColumns& events, std::size_t row, Outcome& outcome) {
    i64 size = events.size[row];
    if (size < 0 || size > kMaxBlockBytes) {
        anomalies_.count(Anomaly::BAD_SIZE);
        size = 0;
    }
    const u64 place = place_of(events.ptr[row], events.flags[row]);
    Block& block = pool.blocks.claim(place);
    if (block.id != 0) {
        // A workspace is registered again with every new size, and nobody unregisters it in between.
        if (pool.key.pool != static_cast<u8>(Pool::PTA_WORKSPACE)) anomalies_.count(Anomaly::DOUBLE_MALLOC, block.size);
        outcome.ended_id = block.id;
        outcome.ended_size = block.size;
        end_block(pool, block, events.ts[row], events.tid[row], false);
    } else if (pool.ordered != nullptr) {
        pool.ordered->insert(place);
    }

    block.ptr = place;
    block.id = ++allocs_;
    block.size = size;
    block.ts = events.ts[row];
    block.step = clock_.step();
    block.tid = events.tid[row];
    block.launches = launches_;
    block.flags = events.flags[row];
    const u32 stream = pool.has_streams ? stream_of(events.aux[row]) : kNoStream;
    block.attr = pool.has_streams ? stream : events.attr[row];
    pool.lowest = std::min(pool.lowest, block.ptr);
    pool.beyond = std::max(pool.beyond, block.ptr + std::max<u64>(static_cast<u64>(size), 1));
    block.site = sites_.obtain(pool.sites, pool.key, events.stack_py[row], events.stack_c[row], size, anomalies_);
    site_peaks_.before_change(pool.peaks, block.site, sites_.at(block.site));
    sites_.allocated(block.site, size, block.step, block.ts);
    if (sums_ != nullptr) sums_->born(block.site, size);
    if (windows_ != nullptr) windows_->born(block.site, size);
    if (lives_ != nullptr) {
        // A block from before recording began is told by a thread that does something else now.
        const bool is_new = !has(block.flags, Flag::SHADOW);
        lives_->begin(block, pool.key, events, row, is_new ? running_->of(block.tid) : Running::Names{});
    }
    owners_.begin(block, pool.key, pool.owners, anomalies_);
    pool.steps.allocated(size);
    pool.steps.note_level();
    pool.owners.note_level(allocs_, clock_.step());
    inefficiency_.begin(block, pool.key, stream, pool.needs, pool.peaks, anomalies_);
    pool.peaks.allocated(size);
    pool.peaks.note_level(clock_.step(), clock_.last_ts());

    outcome.allocation_id = block.id;
    outcome.size = size;
}

void BlockTracker::on_free(PoolBlocks& pool, const EventColumns& events, std::size_t row, Outcome& outcome) {
    const u64 place = place_of(events.ptr[row], events.flags[row]);
    const i64 said = events.size[row];  // 0 and below: the allocator did not say
    const BlockMap::Ending ending = pool.blocks.find_ending(place);
    Block* const block = ending.block;
    if (block == nullptr) {
        const i64 bytes = said > 0 && said <= kMaxBlockBytes ? said : 0;
        anomalies_.count(has_parent_ ? Anomaly::INHERITED_FREE : Anomaly::UNKNOWN_FREE, bytes);
        return;
    }
    // The thread of a FREE that we made up is ours, not the program's.
    if (block->tid != events.tid[row] && !has(events.flags[row], Flag::SYNTHETIC))
        anomalies_.count(Anomaly::OTHER_THREAD_FREE, block->size);
    if (said > 0 && block->size > 0 && said != block->size)
        anomalies_.count(Anomaly::SIZE_MISMATCH, said > block->size ? said - block->size : block->size - said);
    outcome.allocation_id = block->id;
    outcome.size = block->size;
    end_block(pool, *block, events.ts[row], events.tid[row], true);
    pool.steps.note_level();
    pool.blocks.erase(ending);
    if (pool.ordered != nullptr) pool.ordered->erase(place);
}

// An ACCESS that does not know its pool is looked for in all pools of its device; by the storage of its tensor, where
// that is known, for that is what was allocated.
void BlockTracker::on_access(const EventColumns& events, std::size_t row, Outcome& outcome) {
    const i64 storage = events.used[row];
    const PoolKey wanted = pool_of(events, row);
    for (const auto& pool : pools_) {
        if (pool->key.device_type != wanted.device_type || pool->key.device != wanted.device) continue;
        if (wanted.pool != static_cast<u8>(Pool::NONE) && wanted.pool != pool->key.pool) continue;
        Block* block = storage > 0 ? pool->holding(static_cast<u64>(storage)) : nullptr;
        if (block == nullptr) block = pool->holding(events.ptr[row]);
        if (block == nullptr) continue;
        outcome.allocation_id = block->id;
        const bool is_backward = has(events.flags[row], Flag::BACKWARD);
        if (uses_.access(*block, events.aux[row] & kLowBits, events.ts[row], is_backward))
            owners_.suggest(*block, pool->owners, kDetail1, FoldLabel::ACTIVATION, anomalies_);
        if (pool->key.pool == static_cast<u8>(Pool::PTA))
            owners_.suggest(*block, pool->owners, kDetail2, FoldLabel::OPS, anomalies_);
        inefficiency_.access(*block, pool->key, events, row);
        return;
    }
    anomalies_.count(Anomaly::UNKNOWN_ACCESS, std::clamp<i64>(events.size[row], 0, kMaxBlockBytes));
}

// An address may be in a block of a framework and in that of the driver from which it was cut: the former is meant.
void BlockTracker::on_label(const EventColumns& events, std::size_t row) {
    const u64 ptr = events.ptr[row];
    const u32 level = events.aux[row];
    for (const bool of_driver : {false, true}) {
        for (const auto& pool : pools_) {
            if (pool->key.of_driver() != of_driver) continue;
            Block* block = pool->holding(ptr);
            if (block == nullptr) continue;
            owners_.label(*block, pool->owners, level, events.name[row], clock_.step(), events.ts[row], anomalies_);
            return;
        }
    }
    // Our own labels name all parameters, also those on devices that are not recorded.
    if (level >= kUserLevel) anomalies_.count(Anomaly::UNKNOWN_LABEL);
}

Block* BlockTracker::PoolBlocks::holding(u64 ptr) {
    if (ptr < lowest || ptr >= beyond) return nullptr;
    if (Block* block = blocks.find(ptr)) return block;
    if (ordered == nullptr) {
        ordered = std::make_unique<AddressOrder>();
        blocks.each([this](const Block& live) { ordered->insert(live.ptr); });
    }
    const u64* const before = ordered->at_or_before(ptr);
    if (before == nullptr) return nullptr;
    Block* block = blocks.find(*before);
    return ptr - block->ptr < static_cast<u64>(block->size) ? block : nullptr;
}

Belongs BlockTracker::belongs_of(const Block& block, Shown inefficient) const noexcept {
    return {owners_.id_of(block), owners_.changes_of(block), uses_.find(block), inefficient};
}

// Books the end of a block that is still in the map.
void BlockTracker::end_block(PoolBlocks& pool, Block& block, u64 ts, u32 tid, bool seen) {
    site_peaks_.before_change(pool.peaks, block.site, sites_.at(block.site));
    sites_.freed(block.site, block.size);
    if (sums_ != nullptr) sums_->freed(block.site, block.step, clock_.step(), block.size);
    if (windows_ != nullptr)
        windows_->freed(block.site, std::min(clock_.window_at(block.ts), window_), window_, block.size);
    // What nobody has named and what does not outlive its step is temporary, where operators tell activations.
    if (uses_.is_recorded() && block.step == clock_.step() && !pool.key.of_driver() && !owners_.is_known(block))
        owners_.suggest(block, pool.owners, kDetail1, FoldLabel::TEMPORARY, anomalies_);
    const Shown inefficient = seen ? inefficiency_.end(block, pool.key, tid) : inefficiency_.lose(block);
    if (!pool.needs.is_whole()) pool.needs.freed(Inefficiency::stream_of_block(block, pool.key), block.size);
    if (lives_ != nullptr) lives_->end(block, pool.key, ts, clock_.step(), seen, belongs_of(block, inefficient));
    owners_.end(block, pool.owners);
    uses_.end(block);
    if (block.step < clock_.step()) pool.late.push_back(block);
    pool.steps.freed(block.size);
    pool.peaks.freed(block.size, block.step, clock_.step());
}

BlockTracker::PoolBlocks* BlockTracker::obtain_pool(PoolKey key) {
    for (const auto& pool : pools_)
        if (pool->key == key) return pool.get();
    if (pools_.size() >= kMaxPools) return nullptr;
    auto& pool = pools_.emplace_back(std::make_unique<PoolBlocks>(key, clock_.step(), clock_.step_start_ts()));
    if (!phases_.known().empty()) {
        pool->owners.phases = std::make_unique<PoolPhases>(pool->owners.owners);
        pool->owners.phases->follow(phases_.runs(), true, allocs_, clock_.step());
    }
    return pool.get();
}

void BlockTracker::close_steps(u32 next, u32 most_silent) {
    const u32 silent = next - clock_.step() - 1;
    if (silent_rows_ >= kMaxSilentRows) most_silent = 1;
    const u32 rows = std::min(silent, most_silent);
    if (rows < silent && !follows()) anomalies_.count(Anomaly::STEP_JUMP, 0, silent - rows);
    silent_rows_ += rows * pools_.size();
    for (const auto& pool : pools_) {
        pool->steps.close(next, rows, clock_.last_ts());
        pool->owners.close(clock_.step(), allocs_);
        pool->peaks.close(clock_.step(), next, clock_.last_ts());
        pool->late.clear();
    }
    if (sums_ != nullptr) sums_->close(clock_.step(), next);
    windows_.reset();
    clock_.begin(next, clock_.last_ts());
}

void BlockTracker::advance_window() {
    const u32 window = clock_.window_at(clock_.last_ts());
    if (window > window_) {
        windows_->close(window_, window);
        window_ = window;
    }
    window_ends_ = clock_.end_of_window(window_);
}

void BlockTracker::shrink() {
    for (const auto& pool : pools_) {
        pool->blocks.shrink();
        pool->late.shrink_to_fit();
        pool->steps.shrink();
        pool->owners.shrink();
    }
    sites_.shrink();
    site_peaks_.shrink();
    if (sums_ != nullptr) sums_->shrink();
    if (windows_ != nullptr) windows_->shrink();
    if (lives_ != nullptr) lives_->shrink();
    uses_.shrink();
    inefficiency_.shrink();
}

}  // namespace memscope::kernel
