#include "kernel/inefficiency.h"

#include <unordered_map>

#include "kernel/overwriting.h"

namespace memscope::kernel {

namespace {

constexpr u32 kWrite = 2;  // aux of an ACCESS

}  // namespace

void Inefficiency::begin_in(const Block& block, PoolKey pool, u32 stream, StreamNeeds& streams, const PoolPeaks& before,
                            Anomalies& anomalies) {
    if (stream != kNoStream && streams.first() == kNoStream) {
        if (PoolNeeds* const needs = streams.needs_of_first()) {  // judged by the order of the host until now
            forget_blocks_of(needs);
            needs->change_clock();
        }
        streams.tell_first(stream);
        if (!is_active_ && streams.is_whole()) return;
    }
    if (streams.is_whole()) streams.divide(before, *memory_);
    StreamNeeds::OfStream* const one = streams.allocated(stream, block.size, *memory_);
    if (!is_active_ || family_of(pool) == Family::COUNT) {
        if (one != nullptr) one->needs.note_level(one->level, 0, 0, 0);
        return;
    }
    const bool is_untold = stream == kNoStream && streams.first() != kNoStream;
    const ApiOrder::Clock clock = order_.clock_of(pool, is_untold ? streams.first() : stream);
    const bool is_left_out = one == nullptr || clock == ApiOrder::kNoClock;
    if (is_left_out) anomalies.count(Anomaly::LEFT_OUT_STREAM, block.size);
    const bool is_judged = !is_left_out && !is_untold && !has(block.flags, Flag::SHADOW);
    if (one != nullptr && !is_judged)
        one->needs.note_level(one->level, clock == ApiOrder::kNoClock ? 0 : order_.latest(clock), block.id, block.step);
    // Of a block from before recording nobody knows what has touched it.
    if (!has(block.flags, Flag::SHADOW)) judge(block, pool, clock, is_judged ? one : nullptr);
}

void Inefficiency::judge(const Block& block, PoolKey pool, ApiOrder::Clock clock, StreamNeeds::OfStream* one) {
    const ApiOrder::Clock host = ApiOrder::clock_of(family_of(pool));
    if (one == nullptr) clock = host;
    const ApiOrder::Moment moment = order_.malloc(clock, block.tid);
    JudgedBlock& judged = blocks_.obtain(block.id);
    judged.clock = clock;
    judged.by_host.malloc_api = has_stream(clock) ? order_.malloc(host, block.tid).api : moment.api;
    if (one == nullptr) return;
    judged.needs = &one->needs;
    judged.id = block.id;
    judged.size = block.size;
    judged.site = block.site;
    judged.step = block.step;
    judged.life.malloc_api = judged.touched = moment.api;
    judged.operators = moment.operators;
    judged.is_made = moment.is_given;
    one->needs.begin(judged, one->level, order_.latest(clock));
}

ApiOrder::Clock Inefficiency::clock_of(const JudgedBlock* known, const Block& block, PoolKey pool) {
    if (known != nullptr) return known->clock;
    const ApiOrder::Clock clock = order_.clock_of(pool, stream_of_block(block, pool));
    return clock != ApiOrder::kNoClock ? clock : ApiOrder::clock_of(family_of(pool));
}

void Inefficiency::access(const Block& block, PoolKey pool, const EventColumns& events, std::size_t row) {
    is_active_ = true;
    if (family_of(pool) == Family::COUNT) return;
    JudgedBlock* const known = blocks_.find(block.id);
    const ApiOrder::Clock clock = clock_of(known, block, pool), host = ApiOrder::clock_of(family_of(pool));
    const ApiOrder::Moment moment = order_.access(clock, events.tid[row]);
    const u64 host_api = has_stream(clock) ? order_.access(host, events.tid[row]).api : moment.api;
    if (known == nullptr) return;
    JudgedBlock& judged = *known;
    judged.by_host.access(host_api, order_.last_free(host), kIdleThreshold);
    if (judged.needs == nullptr) return;
    PoolNeeds& needs = *judged.needs;
    ApiLife& life = judged.life;
    const u32 how = events.aux[row] & kLowBits;
    const bool is_write = how == kWrite, is_over = judged.elsewhere.are_over();
    u8 pattern = 0;
    if (is_over && moment.api > judged.touched) {
        const bool is_first = life.first_api == 0;
        if (is_first && !judged.is_made)
            pattern = early_allocation;
        else if (is_write && judged.is_written && is_whole(judged, events, row) && is_overwriting(events.name[row]))
            pattern = dead_write;
        else if (moment.api - judged.touched > kIdleThreshold)
            pattern = temporary_idleness;
    }
    const u32 operators = moment.operators - judged.operators;
    const u8 shown = life.access(moment.api, order_.last_free(clock), kIdleThreshold, is_over);
    for (const Pattern one : {early_allocation, temporary_idleness})
        if ((shown & one) != 0) needs.show(judged, one, operators);
    if (pattern == dead_write && (life.words & dead_write) == 0) {
        life.words |= dead_write;
        needs.show(judged, dead_write, operators);
    }
    needs.touch(judged, moment, pattern);
    judged.is_read = judged.is_read || !is_write;
    judged.is_written = is_write;
    judged.elsewhere.access(stream_of(events.aux[row]) != stream_of_block(block, pool), how);
}

Shown Inefficiency::judge_end(const Block& block, PoolKey pool, u32 tid) {
    if (family_of(pool) == Family::COUNT) return {};
    JudgedBlock* const known = blocks_.find(block.id);
    const ApiOrder::Clock clock = clock_of(known, block, pool), host = ApiOrder::clock_of(family_of(pool));
    const ApiOrder::Moment moment = order_.free(clock, tid);
    const u64 host_api = has_stream(clock) ? order_.free(host, tid).api : moment.api;
    if (known == nullptr) return {};
    JudgedBlock& judged = *known;
    judged.by_host.free(host_api, order_.last_malloc(host));
    if (judged.needs == nullptr) {
        const Shown shown = shown_by(judged);
        blocks_.erase(block.id);
        return shown;
    }
    PoolNeeds& needs = *judged.needs;
    ApiLife& life = judged.life;
    const bool is_over = judged.elsewhere.are_over();
    const u32 operators = moment.operators - judged.operators;
    u8 pattern = 0;
    if (moment.api <= judged.touched || !is_over)
        pattern = 0;  // by the operator that needed it last, or when nobody knows who still uses it
    else if (life.last_api == 0)
        pattern = !judged.is_made && order_.last_access(clock) > life.malloc_api ? unused_allocation : 0;
    else
        pattern = judged.is_read ? late_deallocation : dead_write;
    if (is_over && life.free(moment.api, order_.last_malloc(clock))) needs.show(judged, late_deallocation, operators);
    if (pattern != 0 && pattern != late_deallocation && (life.words & pattern) == 0) {
        life.words |= pattern;
        needs.show(judged, pattern, operators);
    }
    needs.end(judged, pattern, operators);
    if (const u64 other = needs.find_reuse(judged, moment.api, pattern != 0); other != 0)
        if (JudgedBlock* const alive = blocks_.find(other)) alive->life.words |= redundant_allocation;
    const Shown shown = shown_by(judged);
    blocks_.erase(block.id);
    return shown;
}

void Inefficiency::forget() {
    order_.forget();
    blocks_.each([](u64, JudgedBlock& judged) {
        if (judged.needs != nullptr) judged.needs->leave(judged);
    });
    blocks_ = {};  // what it costs to go through it is what has come since
}

// What they have shown so far stays, and the host's order goes on.
void Inefficiency::forget_blocks_of(const PoolNeeds* needs) noexcept {
    blocks_.each([needs](u64, JudgedBlock& judged) {
        if (judged.needs != needs) return;
        judged.needs->leave(judged);
        judged.needs = nullptr;
    });
}

Shown Inefficiency::lose(const Block& block) {
    JudgedBlock* const known = blocks_.find(block.id);
    if (known == nullptr) return {};
    if (known->needs != nullptr) known->needs->leave(*known);
    const Shown shown = shown_by(*known);
    blocks_.erase(block.id);
    return shown;
}

// The tensor holds all of its storage. Where that is not known, all of the block but what the pool has rounded up.
bool Inefficiency::is_whole(const JudgedBlock& block, const EventColumns& events, std::size_t row) noexcept {
    const i64 storage = events.used[row] > 0 ? events.total[row] : 0;
    return storage > 0 ? events.size[row] >= storage : events.size[row] > block.size - kSizeUnit;
}

// What a block that is alive would be if nobody touched it any more; 0: it is too early to tell.
u8 Inefficiency::idle_pattern(const JudgedBlock& block, u64 now) const noexcept {
    if (now <= block.touched || now - block.touched <= kIdleThreshold || !block.elsewhere.are_over()) return 0;
    if (block.life.last_api == 0) return block.is_made ? 0 : unused_allocation;
    return block.is_read ? temporary_idleness : dead_write;
}

void Inefficiency::append(InefficiencyTable& table, FloorTable& floors, PoolKey pool, const StreamNeeds& streams,
                          const PoolPeaks& peaks, const BlockMap& blocks, const Sites& sites) const {
    if (!is_active_ || family_of(pool) == Family::COUNT) return;
    if (streams.is_whole()) {  // nothing was allocated since the first operator
        if (peaks.highest() == 0) return;
        StreamNeeds whole;
        whole.tell_first(streams.first());
        NeedMemory none;
        whole.divide(peaks, none);
        append(table, floors, pool, whole, peaks, blocks, sites);
        return;
    }
    struct Now {
        PoolNeeds::Rows rows;
        i64 undecided = 0;
    };
    std::unordered_map<const PoolNeeds*, Now> all;
    for (const StreamNeeds::OfStream& one : streams.streams()) all[&one.needs].rows = one.needs.rows();
    blocks.each([&](const Block& block) {
        const JudgedBlock* const judged = blocks_.find(block.id);
        if (judged == nullptr || judged->needs == nullptr) return;
        Now& now = all[judged->needs];
        judged->needs->foresee(now.rows, now.undecided, *judged, order_.operators(),
                               idle_pattern(*judged, order_.latest(judged->clock)));
    });
    for (const StreamNeeds::OfStream& one : streams.streams()) {
        const Now& now = all[&one.needs];
        one.needs.append(table, pool, one.stream, now.rows, sites);
        one.needs.append(floors, pool, one.stream, now.rows, now.undecided);
    }
}

}  // namespace memscope::kernel
