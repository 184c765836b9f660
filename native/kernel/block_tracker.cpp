#include "kernel/block_tracker.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace memscope::kernel {

namespace {

constexpr u8 kMalloc = static_cast<u8>(Kind::MALLOC);
constexpr u8 kFree = static_cast<u8>(Kind::FREE);
constexpr u8 kAccess = static_cast<u8>(Kind::ACCESS);
constexpr u8 kStep = static_cast<u8>(Kind::STEP);
constexpr u8 kRangeEnd = static_cast<u8>(Kind::RANGE_END);
constexpr u8 kLaunch = static_cast<u8>(Kind::KERNEL_LAUNCH);
constexpr u8 kHal = static_cast<u8>(Pool::HAL);
constexpr u32 kFirstStep = 2;  // analysis/steps.py
constexpr u32 kIsStep = 1;     // aux of RANGE_END: the range was a step

// How many events ahead of its turn the slot of an address is fetched: with many live blocks every event misses the
// cache, and waiting for one at a time halves the speed (benchmarks/tracker.py, churn).
constexpr std::size_t kAhead = 8;

// Sums of sizes that a damaged ring made up wrap around.
i64 plus(i64 sum, i64 more) noexcept { return static_cast<i64>(static_cast<u64>(sum) + static_cast<u64>(more)); }
i64 minus(i64 sum, i64 less) noexcept { return static_cast<i64>(static_cast<u64>(sum) - static_cast<u64>(less)); }

u32 step_of(const EventColumns& events, std::size_t row) noexcept { return std::min(events.step[row], kMaxStep); }

bool has(u8 flags, Flag flag) noexcept { return (flags & static_cast<u8>(flag)) != 0; }

// Where a block stands in its pool's map. A handle of physical memory is no address, though it may equal one; no
// address of a process has the top bit.
constexpr u64 kHandleBit = u64{1} << 63;
u64 place_of(u64 ptr, u8 flags) noexcept { return has(flags, Flag::HANDLE) ? ptr | kHandleBit : ptr; }

constexpr const char* kAnomalyText[kAnomalies] = {
#define X(name, text, meaning) text,
    MEMSCOPE_ANOMALIES(X)
#undef X
};

}  // namespace

// ---------------------------------------------------------------------------------------------- feeding

BlockTracker::BlockTracker(std::size_t max_sites, std::size_t max_runs) : max_sites_(max_sites), max_runs_(max_runs) {}

void BlockTracker::add_process(u32 process, i64 parent) {
    const auto [entry, added] = process_index_.try_emplace(process, static_cast<u32>(processes_.size()));
    if (added) {
        processes_.emplace_back();
        processes_.back().id = process;
        if (max_runs_ != 0) processes_.back().sums = std::make_unique<SiteSums>(max_runs_);
    }
    processes_[entry->second].parent = parent;
}

void BlockTracker::feed(u32 process_id, const EventColumns& events, EnrichTable* enriched) {
    Process& process = processes_[process_index_.at(process_id)];
    PoolState* pool = nullptr;  // of the event before: nearly always the same
    for (std::size_t row = 0; row < events.n; ++row) {
        const u8 kind = events.kind[row];
        const u32 step = step_of(events, row);
        // A device's clock, even converted, may lie before or after the events around it, and what happened while
        // recording was off comes later than its time: neither says when a step began.
        const bool timely = !has(events.flags[row], Flag::DEVICE_TIME) && !has(events.flags[row], Flag::SHADOW);
        if (timely) process.last_ts = std::max(process.last_ts, events.ts[row]);
        if (!process.started) start(process, step, process.last_ts);
        if (timely && !process.clocked) begin_clock(process, events.ts[row]);
        if (process.windows != nullptr) advance_window(process);
        if (step > process.step) close_steps(process, step, process.last_ts, process.follows() ? 1 : kMaxSilentSteps);
        if (step == process.step && step > process.told_step)
            forget_levels(process);  // a range that ended had opened it
        process.told_step = std::max(process.told_step, step);

        if (pool != nullptr && row + kAhead < events.n) pool->blocks.prefetch(events.ptr[row + kAhead]);

        Outcome outcome;
        outcome.size = events.size[row];
        if (kind == kMalloc || kind == kFree) {
            const u8 device_type = events.device_type[row], pool_kind = events.pool[row];
            const i16 device = events.device[row];
            if (pool == nullptr || pool->device != device || pool->pool != pool_kind ||
                pool->device_type != device_type)
                pool = obtain_pool(process, device_type, device, pool_kind);
            if (pool == nullptr) {
                process.count(Anomaly::LEFT_OUT_POOL);
                if (enriched != nullptr) enrich(*enriched, outcome);
                continue;
            }
            if (step < process.told_step) process.count(Anomaly::LATE_STEP);
            if (kind == kMalloc)
                on_malloc(process, *pool, events, row, outcome);
            else
                on_free(process, *pool, events, row, outcome);
            const i64 reserved = events.total[row];
            if (reserved >= 0) {
                pool->open.end_reserved = reserved;
                pool->open.peak_reserved = std::max(pool->open.peak_reserved, reserved);
            }
            outcome.live_after = pool->open.end_bytes;
        } else if (kind == kStep) {
            on_step(process, events, row);
        } else if (kind == kRangeEnd) {
            on_range_end(process, events, row);
        } else if (kind == kLaunch) {
            process.launches += 1;
        } else if (kind == kAccess && enriched != nullptr) {
            on_access(process, events, row, outcome);
        }
        if (enriched != nullptr) enrich(*enriched, outcome);
    }
    process.events += events.n;
}

void BlockTracker::enrich(EnrichTable& table, const Outcome& outcome) {
#define X(type, name) table.name.push_back(outcome.name);
    MEMSCOPE_ENRICH_COLUMNS(X)
#undef X
}

void BlockTracker::on_step(Process& process, const EventColumns& events, std::size_t row) {
    process.boundaries += 1;
    process.range_step = step_of(events, row);
    process.in_range = events.aux && events.aux[row] == static_cast<u32>(StepSource::MSTX);
    if (events.stack_py[row] != 0) process.step_stack = events.stack_py[row];
}

void BlockTracker::on_range_end(Process& process, const EventColumns& events, std::size_t row) {
    const u32 step = step_of(events, row);
    if (!process.in_range || step != process.range_step || events.aux[row] != kIsStep) return;
    process.in_range = false;
    if (step >= process.step) close_steps(process, step + 1, process.last_ts, 1);
}

void BlockTracker::on_malloc(Process& process, PoolState& pool, const EventColumns& events, std::size_t row,
                             Outcome& outcome) {
    i64 size = events.size[row];
    if (size < 0 || size > kMaxBlockBytes) {
        process.count(Anomaly::BAD_SIZE);
        size = 0;
    }
    const u64 place = place_of(events.ptr[row], events.flags[row]);
    Block& block = pool.blocks.claim(place);
    if (block.id != 0) {
        // A workspace is registered again with every new size, and nobody unregisters it in between.
        if (pool.pool != static_cast<u8>(Pool::PTA_WORKSPACE)) process.count(Anomaly::DOUBLE_MALLOC, block.size);
        outcome.ended_id = block.id;
        outcome.ended_size = block.size;
        end_block(process, pool, block);
    } else if (pool.ordered != nullptr) {
        pool.ordered->insert(place);
    }

    block.ptr = place;
    block.id = ++process.allocs;
    block.size = size;
    block.ts = events.ts[row];
    block.step = process.step;
    block.tid = events.tid[row];
    block.launches = process.launches;
    block.flags = events.flags[row];
    if (pool.pool == kHal && events.attr && events.attr[row] != 0) pool.words[block.id] = events.attr[row];
    block.site = obtain_site(process, pool, events.stack_py[row], events.stack_c[row], size);

    Site& site = sites_[block.site];
    if (site.allocs == 0) {
        site.first_step = process.step;
        site.first_ts = block.ts;
    }
    site.last_step = process.step;
    site.last_ts = block.ts;
    site.order = block.id;
    site.allocs += 1;
    site.alloc_bytes += static_cast<u64>(size);
    site.live_bytes = plus(site.live_bytes, size);
    site.peak_bytes = std::max(site.peak_bytes, site.live_bytes);
    if (process.sums != nullptr) process.sums->born(block.site, size);
    if (process.windows != nullptr) process.windows->born(block.site, size);

    StepRow& open = pool.open;
    open.allocs += 1;
    open.alloc_bytes += static_cast<u64>(size);
    open.end_bytes = plus(open.end_bytes, size);
    open.note_level();

    outcome.allocation_id = block.id;
    outcome.size = size;
}

void BlockTracker::on_free(Process& process, PoolState& pool, const EventColumns& events, std::size_t row,
                           Outcome& outcome) {
    const u64 ptr = place_of(events.ptr[row], events.flags[row]);
    const i64 said = events.size[row];  // 0 and below: the allocator did not say
    const Block* block = pool.blocks.find(ptr);
    if (block == nullptr) {
        const i64 bytes = said > 0 && said <= kMaxBlockBytes ? said : 0;
        process.count(process.parent >= 0 ? Anomaly::INHERITED_FREE : Anomaly::UNKNOWN_FREE, bytes);
        return;
    }
    // The thread of a FREE that we made up is ours, not the program's.
    if (block->tid != events.tid[row] && !has(events.flags[row], Flag::SYNTHETIC))
        process.count(Anomaly::OTHER_THREAD_FREE, block->size);
    if (said > 0 && block->size > 0 && said != block->size)
        process.count(Anomaly::SIZE_MISMATCH, said > block->size ? said - block->size : block->size - said);
    outcome.allocation_id = block->id;
    outcome.size = block->size;
    end_block(process, pool, *block);
    pool.open.note_level();
    pool.blocks.erase(block);
    if (pool.ordered != nullptr) pool.ordered->erase(ptr);
}

// An ACCESS that does not know its pool is looked for in all pools of its device.
void BlockTracker::on_access(Process& process, const EventColumns& events, std::size_t row, Outcome& outcome) {
    const u64 ptr = events.ptr[row];
    for (const u32 index : process.pools) {
        PoolState& pool = *pools_[index];
        if (pool.device_type != events.device_type[row] || pool.device != events.device[row]) continue;
        if (events.pool[row] != static_cast<u8>(Pool::NONE) && events.pool[row] != pool.pool) continue;
        const Block* block = pool.blocks.find(ptr);
        if (block == nullptr) {
            if (pool.ordered == nullptr) {
                pool.ordered = std::make_unique<std::set<u64>>();
                pool.blocks.each([&pool](const Block& live) { pool.ordered->insert(live.ptr); });
            }
            const auto after = pool.ordered->upper_bound(ptr);
            if (after == pool.ordered->begin()) continue;
            block = pool.blocks.find(*std::prev(after));
            if (ptr - block->ptr >= static_cast<u64>(block->size)) continue;
        }
        outcome.allocation_id = block->id;
        return;
    }
}

// Books the end of a block that is still in the map.
void BlockTracker::end_block(Process& process, PoolState& pool, const Block& block) {
    Site& site = sites_[block.site];
    site.frees += 1;
    site.freed_bytes += static_cast<u64>(block.size);
    site.live_bytes = minus(site.live_bytes, block.size);
    if (process.sums != nullptr) process.sums->freed(block.site, block.step, process.step, block.size);
    if (process.windows != nullptr)
        process.windows->freed(block.site, std::min(window_at(process, block.ts), process.window), process.window,
                               block.size);
    u64 attr = 0;
    if (const auto word = pool.words.find(block.id); word != pool.words.end()) {
        attr = word->second;
        pool.words.erase(word);
    }
    if (block.step < process.step) process.late.push_back(Late{block, pool.index, attr});

    StepRow& open = pool.open;
    open.frees += 1;
    open.freed_bytes += static_cast<u64>(block.size);
    open.end_bytes = minus(open.end_bytes, block.size);
}

void BlockTracker::Process::count(Anomaly kind, i64 bytes, u64 times) noexcept {
    anomaly_count[static_cast<std::size_t>(kind)] += times;
    anomaly_bytes[static_cast<std::size_t>(kind)] += static_cast<u64>(bytes);
}

// ------------------------------------------------------------------------------------- pools and sites

BlockTracker::PoolState* BlockTracker::obtain_pool(Process& process, u8 device_type, i16 device, u8 pool) {
    for (const u32 index : process.pools) {
        PoolState& known = *pools_[index];
        if (known.device == device && known.pool == pool && known.device_type == device_type) return &known;
    }
    if (process.pools.size() >= kMaxPools) return nullptr;
    const u32 index = static_cast<u32>(pools_.size());
    pools_.push_back(std::make_unique<PoolState>());
    process.pools.push_back(index);
    PoolState& added = *pools_.back();
    added.index = index;
    added.process = static_cast<u32>(&process - processes_.data());
    added.device_type = device_type;
    added.device = device;
    added.pool = pool;
    added.open.step = process.step;
    added.open.start_ts = process.step_start_ts;
    return &added;
}

u32 BlockTracker::obtain_site(Process& process, PoolState& pool, u64 stack_py, u64 stack_c, i64 size) {
    u32 id = pool.sites.find(stack_py, stack_c);
    if (id != kNone) return id;
    if (sites_.size() >= max_sites_ && (stack_py != 0 || stack_c != 0)) {
        process.count(Anomaly::FOLDED_SITE, size);
        return obtain_site(process, pool, 0, 0, size);
    }
    id = static_cast<u32>(sites_.size());
    sites_.emplace_back();
    sites_.back().pool = pool.index;
    sites_.back().stack_py = stack_py;
    sites_.back().stack_c = stack_c;
    pool.sites.add(stack_py, stack_c, id);
    return id;
}

std::size_t BlockTracker::SiteIndex::probe(const std::vector<Slot>& slots, u64 stack_py, u64 stack_c) noexcept {
    const std::size_t mask = slots.size() - 1;
    std::size_t at = static_cast<std::size_t>(combine64(stack_py, stack_c)) & mask;
    while (slots[at].site != kNone && (slots[at].stack_py != stack_py || slots[at].stack_c != stack_c))
        at = (at + 1) & mask;
    return at;
}

u32 BlockTracker::SiteIndex::find(u64 stack_py, u64 stack_c) const noexcept {
    return slots_.empty() ? kNone : slots_[probe(slots_, stack_py, stack_c)].site;
}

void BlockTracker::SiteIndex::add(u64 stack_py, u64 stack_c, u32 site) {
    if ((count_ + 1) * 2 > slots_.size()) {
        std::vector<Slot> larger(slots_.empty() ? 16 : slots_.size() * 2);
        for (const Slot& slot : slots_)
            if (slot.site != kNone) larger[probe(larger, slot.stack_py, slot.stack_c)] = slot;
        slots_ = std::move(larger);
    }
    slots_[probe(slots_, stack_py, stack_c)] = Slot{stack_py, stack_c, site};
    ++count_;
}

// ------------------------------------------------------------------------------------------------ steps

void BlockTracker::start(Process& process, u32 step, u64 ts) {
    process.started = true;
    process.first_step = process.step = step;
    if (max_runs_ == 0) return;
    process.sums->start(step);
    process.windows = std::make_unique<SiteSums>(max_runs_);
    process.window = 1;
    process.windows->start(process.window);
    process.first_ts = process.step_start_ts = ts;
}

u32 BlockTracker::window_at(const Process& process, u64 ts) noexcept {
    const u64 ns = ts > process.first_ts ? ts - process.first_ts : 0;
    return static_cast<u32>(std::min<u64>(1 + ns / kWindowNs, kMaxStep));
}

void BlockTracker::advance_window(Process& process) {
    const u32 window = window_at(process, process.last_ts);
    if (window <= process.window) return;
    process.windows->close(process.window, window);
    process.window = window;
}

// What began before any event could tell the time begins with the first that can.
void BlockTracker::begin_clock(Process& process, u64 ts) {
    process.clocked = true;
    process.first_ts = process.step_start_ts = ts;
    for (const u32 index : process.pools) pools_[index]->open.start_ts = ts;
}

// Behind every event that changed `end_bytes`. While an address is given out again there is no level in between.
void BlockTracker::StepRow::note_level() noexcept {
    min_bytes = has_level ? std::min(min_bytes, end_bytes) : end_bytes;
    most_bytes = has_level ? std::max(most_bytes, end_bytes) : end_bytes;
    has_level = true;
    peak_bytes = std::max(peak_bytes, end_bytes);
}

void BlockTracker::StepRow::forget_levels() noexcept {
    min_bytes = end_bytes;
    most_bytes = 0;
    has_level = false;
}

// A step that is a range begins here: the levels since the range before are those of no step. Its other numbers count
// to this one, so that nothing is left out of sums and peaks.
void BlockTracker::forget_levels(Process& process) noexcept {
    for (const u32 index : process.pools) pools_[index]->open.forget_levels();
}

BlockTracker::StepRow BlockTracker::StepRow::next(u32 number, u64 ts) const noexcept {
    StepRow row;
    row.step = number;
    row.start_bytes = row.end_bytes = row.peak_bytes = row.min_bytes = end_bytes;
    row.start_reserved = row.end_reserved = row.peak_reserved = end_reserved;
    row.start_ts = row.end_ts = ts;
    return row;
}

void BlockTracker::close_steps(Process& process, u32 next, u64 ts, u32 most_silent) {
    const u32 silent = next - process.step - 1;
    if (process.silent_rows >= kMaxSilentRows) most_silent = 1;
    const u32 rows = std::min(silent, most_silent);
    if (rows < silent && !process.follows()) process.count(Anomaly::STEP_JUMP, 0, silent - rows);
    process.silent_rows += rows * process.pools.size();
    for (const u32 index : process.pools) {
        PoolState& pool = *pools_[index];
        close_row(pool, ts);
        for (u32 step = next - rows; step < next; ++step) pool.closed.push_back(pool.open.next(step, ts));
        pool.open = pool.open.next(next, ts);
        if (pool.closed.size() > kMaxStepRows) thin_rows(pool);
    }

    if (process.sums != nullptr) process.sums->close(process.step, next);
    process.windows.reset();
    process.late.clear();
    process.step = next;
    process.step_start_ts = ts;
    process.begins.push_back(Begin{next, ts});
    if (process.begins.size() > kMaxBegins) thin_begins(process);
}

// Ends the row of the open step. A ratio of least to most, upstream's gap, counts from kFirstStep on.
void BlockTracker::close_row(PoolState& pool, u64 ts) {
    StepRow& row = pool.open;
    row.end_ts = ts;
    pool.closed.push_back(row);
    if (row.step < kFirstStep || row.most_bytes <= 0) return;
    const auto ratio = [](const StepRow& one) {
        return static_cast<double>(one.min_bytes) / static_cast<double>(one.most_bytes);
    };
    if (!pool.smallest_gap || ratio(row) < ratio(*pool.smallest_gap)) pool.smallest_gap = row;
    if (!pool.largest_gap || ratio(row) > ratio(*pool.largest_gap)) pool.largest_gap = row;
}

void BlockTracker::thin_rows(PoolState& pool) {
    const auto stays = [&pool](const StepRow& row) {
        return (pool.smallest_gap && row.step == pool.smallest_gap->step) ||
               (pool.largest_gap && row.step == pool.largest_gap->step);
    };
    constexpr std::size_t kEnough = kMaxStepRows / 4 * 3;
    while (pool.closed.size() > kEnough) {
        std::vector<StepRow> rows;
        for (const StepRow& row : pool.closed) {
            const bool joins = !rows.empty() && rows.back().step / pool.row_stride == row.step / pool.row_stride;
            if (!joins || stays(rows.back()) || stays(row)) {
                rows.push_back(row);
                continue;
            }
            StepRow& before = rows.back();
            StepRow both = row;
            both.steps += before.steps;
            both.start_bytes = before.start_bytes;
            both.start_reserved = before.start_reserved;
            both.start_ts = before.start_ts;
            both.peak_bytes = std::max(both.peak_bytes, before.peak_bytes);
            both.peak_reserved = std::max(both.peak_reserved, before.peak_reserved);
            both.min_bytes = std::min(both.min_bytes, before.min_bytes);
            both.most_bytes = std::max(both.most_bytes, before.most_bytes);
            both.allocs += before.allocs;
            both.frees += before.frees;
            both.alloc_bytes += before.alloc_bytes;
            both.freed_bytes += before.freed_bytes;
            before = both;
        }
        pool.closed = std::move(rows);
        if (pool.closed.size() <= kEnough || pool.row_stride > pool.open.step) break;
        pool.row_stride *= 2;
    }
}

// Every second begin goes: whoever asks for the step at a time then gets, for the steps between, the one before.
void BlockTracker::thin_begins(Process& process) {
    std::size_t kept = 0;
    for (std::size_t at = 0; at < process.begins.size(); at += 2) process.begins[kept++] = process.begins[at];
    process.begins.resize(kept);
}

// ----------------------------------------------------------------------------------------------- tables

SiteTable BlockTracker::sites() const {
    SiteTable table;
    for (const Site& site : sites_) {
        const PoolState& pool = *pools_[site.pool];
        table.process.push_back(processes_[pool.process].id);
        table.device_type.push_back(pool.device_type);
        table.device.push_back(pool.device);
        table.pool.push_back(pool.pool);
        table.stack_py.push_back(site.stack_py);
        table.stack_c.push_back(site.stack_c);
        table.allocs.push_back(site.allocs);
        table.alloc_bytes.push_back(site.alloc_bytes);
        table.frees.push_back(site.frees);
        table.freed_bytes.push_back(site.freed_bytes);
        table.live_blocks.push_back(site.live_blocks());
        table.live_bytes.push_back(site.live_bytes);
        table.peak_bytes.push_back(site.peak_bytes);
        table.first_step.push_back(site.first_step);
        table.last_step.push_back(site.last_step);
        table.first_ts.push_back(site.first_ts);
        table.last_ts.push_back(site.last_ts);
        table.order.push_back(site.order);
    }
    return table;
}

StepTable BlockTracker::steps() const {
    StepTable table;
    for (const auto& pool : pools_) {
        const Process& process = processes_[pool->process];
        const auto append = [&](const StepRow& row, bool complete) {
            table.process.push_back(process.id);
            table.device_type.push_back(pool->device_type);
            table.device.push_back(pool->device);
            table.pool.push_back(pool->pool);
            table.step.push_back(row.step);
            table.start_bytes.push_back(row.start_bytes);
            table.end_bytes.push_back(row.end_bytes);
            table.peak_bytes.push_back(row.peak_bytes);
            table.min_bytes.push_back(row.min_bytes);
            table.most_bytes.push_back(row.most_bytes);
            table.start_reserved.push_back(row.start_reserved);
            table.end_reserved.push_back(row.end_reserved);
            table.peak_reserved.push_back(row.peak_reserved);
            table.allocs.push_back(row.allocs);
            table.frees.push_back(row.frees);
            table.alloc_bytes.push_back(row.alloc_bytes);
            table.freed_bytes.push_back(row.freed_bytes);
            table.start_ts.push_back(row.start_ts);
            table.end_ts.push_back(complete ? row.end_ts : process.last_ts);
            table.complete.push_back(complete ? Bool::YES : Bool::NO);
            table.steps.push_back(row.steps);
        };
        for (const StepRow& row : pool->closed) append(row, true);
        append(pool->open, false);
    }
    return table;
}

LiveTable BlockTracker::live() const { return blocks(false); }

LiveTable BlockTracker::held() const { return blocks(true); }

LiveTable BlockTracker::blocks(bool with_late) const {
    struct One {
        const Block* block;
        const Late* late;
    };
    LiveTable table;
    std::vector<One> found;
    for (const auto& pool : pools_) {
        found.clear();
        pool->blocks.each([&found](const Block& block) { found.push_back(One{&block, nullptr}); });
        if (with_late)
            for (const Late& late : processes_[pool->process].late)
                if (late.pool == pool->index) found.push_back(One{&late.block, &late});
        std::sort(found.begin(), found.end(), [](const One& a, const One& b) { return a.block->id < b.block->id; });
        for (const auto& [block, late] : found) {
            const auto word = pool->words.find(block->id);
            const u64 attr = late != nullptr ? late->attr : word != pool->words.end() ? word->second : 0;
            append(table, *pool, *block, attr, late != nullptr);
        }
    }
    return table;
}

void BlockTracker::append(LiveTable& table, const PoolState& pool, const Block& block, u64 attr, bool late) const {
    const Site& site = sites_[block.site];
    table.process.push_back(processes_[pool.process].id);
    table.device_type.push_back(pool.device_type);
    table.device.push_back(pool.device);
    table.pool.push_back(pool.pool);
    table.ptr.push_back(block.ptr & ~kHandleBit);
    table.size.push_back(block.size);
    table.stack_py.push_back(site.stack_py);
    table.stack_c.push_back(site.stack_c);
    table.step.push_back(block.step);
    table.ts.push_back(block.ts);
    table.tid.push_back(block.tid);
    table.flags.push_back(block.flags);
    table.allocation_id.push_back(block.id);
    table.site.push_back(block.site);
    table.attr.push_back(attr);
    table.launches.push_back(block.launches);
    table.late.push_back(late ? Bool::YES : Bool::NO);
}

AnomalyTable BlockTracker::anomalies() const {
    AnomalyTable table;
    for (const Process& process : processes_) {
        for (std::size_t kind = 0; kind < kAnomalies; ++kind) {
            if (process.anomaly_count[kind] == 0) continue;
            table.process.push_back(process.id);
            table.kind.emplace_back(kAnomalyText[kind]);
            table.count.push_back(process.anomaly_count[kind]);
            table.bytes.push_back(static_cast<i64>(process.anomaly_bytes[kind]));
        }
    }
    return table;
}

u32 BlockTracker::sum_stride() const noexcept {
    if (processes_.empty() || processes_.front().sums == nullptr) return 1;
    const Process& process = processes_.front();
    return process.windows != nullptr ? process.windows->stride() : process.sums->stride();
}

SumTable BlockTracker::sums() const {
    SumTable table;
    for (const Process& process : processes_) append(process, table);
    return table;
}

AgeTable BlockTracker::ages() const {
    AgeTable table;
    for (const Process& process : processes_) append(process, table);
    return table;
}

template <typename Table>
void BlockTracker::append(const Process& process, Table& table) {
    if (process.windows != nullptr)
        process.windows->append(table, process.window);
    else if (process.sums != nullptr)
        process.sums->append(table, process.step);
}

BeginTable BlockTracker::begins() const {
    BeginTable table;
    for (const Process& process : processes_) {
        for (const Begin& begin : process.begins) {
            table.process.push_back(process.id);
            table.step.push_back(begin.step);
            table.ts.push_back(begin.ts);
        }
    }
    return table;
}

ProcessTable BlockTracker::processes() const {
    ProcessTable table;
    for (const Process& process : processes_) {
        table.process.push_back(process.id);
        table.parent.push_back(process.parent);
        table.events.push_back(process.events);
        table.allocs.push_back(process.allocs);
        table.first_step.push_back(process.first_step);
        table.step.push_back(process.step);
        table.first_ts.push_back(process.first_ts);
        table.last_ts.push_back(process.last_ts);
        table.step_stack.push_back(process.step_stack);
        table.boundaries.push_back(process.boundaries);
        table.launches.push_back(process.launches);
        table.window.push_back(process.windows != nullptr ? process.window : 0);
    }
    return table;
}

}  // namespace memscope::kernel
