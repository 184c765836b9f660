#include "kernel/inefficiency.h"

#include "kernel/overwriting.h"

namespace memscope::kernel {

namespace {

constexpr u32 kWrite = 2;  // aux of an ACCESS

}  // namespace

void Inefficiency::judge(const Block& block, PoolKey pool, StreamNeeds::OfStream& stream) {
    PoolNeeds& needs = stream.needs;
    const ApiOrder::Clock clock =
        family_of(pool) == Family::COUNT ? ApiOrder::kNoClock : order_.clock_of(pool, stream.stream);
    // Of a block from before recording nobody knows what has touched it.
    if (clock == ApiOrder::kNoClock || has(block.flags, Flag::SHADOW)) {
        needs.note_level(stream.level);
        return;
    }
    const ApiOrder::Clock host = ApiOrder::clock_of(family_of(pool));
    const ApiOrder::Moment moment = order_.malloc(clock, block.tid);
    JudgedBlock& judged = blocks_[block.id];
    judged.needs = &needs;
    judged.clock = clock;
    judged.by_host.malloc_api = has_stream(clock) ? order_.malloc(host, block.tid).api : moment.api;
    judged.id = block.id;
    judged.size = block.size;
    judged.site = block.site;
    judged.step = block.step;
    judged.life.malloc_api = judged.touched = moment.api;
    judged.operators = moment.operators;
    judged.is_made = moment.is_given;
    needs.begin(judged, stream.level, order_.latest(clock));
}

void Inefficiency::access(const Block& block, PoolKey pool, const EventColumns& events, std::size_t row) {
    is_active_ = true;
    if (family_of(pool) == Family::COUNT) return;
    const u32 own = stream_of_block(block, pool);
    const ApiOrder::Clock clock = order_.clock_of(pool, own), host = ApiOrder::clock_of(family_of(pool));
    if (clock == ApiOrder::kNoClock) return;
    const ApiOrder::Moment moment = order_.access(clock, events.tid[row]);
    const u64 host_api = has_stream(clock) ? order_.access(host, events.tid[row]).api : moment.api;
    const auto known = blocks_.find(block.id);
    if (known == blocks_.end()) return;
    JudgedBlock& judged = known->second;
    PoolNeeds& needs = *judged.needs;
    ApiLife& life = judged.life;
    judged.by_host.access(host_api, order_.last_free(host), kIdleThreshold);
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
    judged.elsewhere.access(stream_of(events.aux[row]) != own, how);
}

Shown Inefficiency::judge_end(const Block& block, PoolKey pool, u32 tid) {
    if (family_of(pool) == Family::COUNT) return {};
    const ApiOrder::Clock clock = order_.clock_of(pool, stream_of_block(block, pool));
    if (clock == ApiOrder::kNoClock) return {};
    const ApiOrder::Clock host = ApiOrder::clock_of(family_of(pool));
    const ApiOrder::Moment moment = order_.free(clock, tid);
    const u64 host_api = has_stream(clock) ? order_.free(host, tid).api : moment.api;
    const auto known = blocks_.find(block.id);
    if (known == blocks_.end()) return {};
    JudgedBlock& judged = known->second;
    judged.by_host.free(host_api, order_.last_malloc(host));
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
        if (const auto alive = blocks_.find(other); alive != blocks_.end())
            alive->second.life.words |= redundant_allocation;
    const Shown shown = shown_by(judged);
    blocks_.erase(known);
    return shown;
}

void Inefficiency::forget() {
    order_.forget();
    for (const auto& [id, judged] : blocks_) judged.needs->leave(judged);
    blocks_ = {};  // clear() would go through as many buckets as there ever were blocks
}

Shown Inefficiency::lose(const Block& block) {
    if (blocks_.empty()) return {};
    const auto known = blocks_.find(block.id);
    if (known == blocks_.end()) return {};
    known->second.needs->leave(known->second);
    const Shown shown = shown_by(known->second);
    blocks_.erase(known);
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
                          const BlockMap& blocks, const Sites& sites) const {
    if (!is_active_ || family_of(pool) == Family::COUNT) return;
    struct Now {
        const StreamNeeds::OfStream* stream;
        PoolNeeds::Rows rows;
        i64 undecided = 0;
    };
    std::vector<Now> all;
    for (const StreamNeeds::OfStream& one : streams.streams()) all.push_back({&one, one.needs.rows()});
    blocks.each([&](const Block& block) {
        const auto known = blocks_.find(block.id);
        if (known == blocks_.end()) return;
        const JudgedBlock& judged = known->second;
        const u32 stream = stream_of_block(block, pool);
        for (Now& now : all)
            if (now.stream->stream == stream)
                judged.needs->foresee(now.rows, now.undecided, judged, order_.operators(),
                                      idle_pattern(judged, order_.latest(judged.clock)));
    });
    for (const auto& [stream, rows, undecided] : all) {
        stream->needs.append(table, pool, stream->stream, rows, sites);
        stream->needs.append(floors, pool, stream->stream, rows, undecided);
    }
}

}  // namespace memscope::kernel
