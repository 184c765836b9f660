#include "kernel/block_lives.h"

#include <utility>

namespace memscope::kernel {

namespace {

bool is_placed(PoolKey pool) noexcept { return pool.on_card() && pool.pool < Cover::kPools; }

}  // namespace

void BlockLives::begin(Block& block, PoolKey pool, const EventColumns& events, std::size_t row,
                       Running::Names running) {
    if (unused_.empty()) {
        block.life = static_cast<u32>(lives_.size());
        lives_.emplace_back();
    } else {
        block.life = unused_.back();
        unused_.pop_back();
    }
    Life& life = lives_[block.life];
    life.stack_py = events.stack_py[row];
    life.stack_c = events.stack_c[row];
    life.name = events.name.value_or_zero(row);
    life.attr = events.attr.value_or_zero(row);
    life.running = running;
    life.place = {};
    if (is_placed(pool)) enter(life, block, pool);
}

void BlockLives::enter(Life& life, const Block& block, PoolKey pool) {
    SegmentMap& space = spaces_[space_key(pool.device_type, pool.device)];
    if (!pool.of_driver()) {
        life.place = space.begin(span_of(block, pool));
        return;
    }
    if (has(block.flags, Flag::HANDLE)) {
        handles_[block.address()] = Handle{block.id, life.attr, pool.pool};
    } else {
        Segment segment;
        segment.ptr = block.address();
        segment.size = block.size;
        segment.id = segment.born = block.id;
        segment.attr = life.attr;
        segment.driver = pool.pool;
        segment.ts = block.ts;
        segment.step = block.step;
        segment.shadow = has(block.flags, Flag::SHADOW);
        space.add(std::move(segment));
    }
    space.driver_changed(block.size);
}

void BlockLives::end(const Block& block, PoolKey pool, u64 ts, u32 step, bool seen, const Belongs& belongs) {
    const Life& life = lives_[block.life];
    Place place = life.place;
    if (is_placed(pool)) {
        SegmentMap& space = spaces_[space_key(pool.device_type, pool.device)];
        if (!pool.of_driver()) {
            if (is_told_late(block, pool)) place = look_again(space, life, block, pool);
            space.end(span_of(block, pool));
        } else {
            if (has(block.flags, Flag::HANDLE))
                handles_.erase(block.address());
            else
                space.remove(block.address(), block.id);
            space.driver_changed(-block.size);
        }
    }
    append(ended_, life, block, pool, place, belongs);
    ended_.free_ts.push_back(ts);
    ended_.free_step.push_back(step);
    ended_.free_seen.push_back(seen ? Bool::YES : Bool::NO);
    ended_.alive.push_back(Bool::NO);
    unused_.push_back(block.life);
}

void BlockLives::map(const EventColumns& events, std::size_t row, u32 step, u64 allocs) {
    const i64 size = events.size[row];
    const PoolKey pool{events.device[row], events.device_type[row], events.pool[row]};
    if (!pool.on_card() || size <= 0 || size > kMaxBlockBytes || segment_count() >= kMaxSegments) return;
    Segment segment;
    segment.ptr = events.ptr[row];
    segment.size = size;
    segment.born = allocs;
    segment.driver = pool.pool;
    segment.ts = events.ts[row];
    segment.step = step;
    segment.shadow = has(events.flags[row], Flag::SHADOW);
    const auto handle = handles_.find(events.attr.value_or_zero(row));
    if (handle != handles_.end()) {
        segment.id = handle->second.id;
        segment.attr = handle->second.attr;
        segment.driver = handle->second.driver;
    }
    spaces_[space_key(pool.device_type, pool.device)].add(std::move(segment));
}

std::size_t BlockLives::segment_count() const noexcept {
    std::size_t count = 0;
    for (const auto& [key, space] : spaces_) count += 1 + space.size();
    return count;
}

// The driver needs no device to unmap, so the source may not know it.
void BlockLives::unmap(u64 ptr, i16 device) {
    for (auto& [key, space] : spaces_)
        if (device == kNoDevice || static_cast<i16>(key & 0xFFFF) == device) space.remove(ptr, 0);
}

LifeTable BlockLives::take_ended() noexcept { return std::exchange(ended_, {}); }

void BlockLives::shrink() {
    if (unused_.size() == lives_.size()) {
        lives_.clear();
        unused_.clear();
    }
    lives_.shrink_to_fit();
    unused_.shrink_to_fit();
#define X(type, name) ended_.name.shrink_to_fit();
    MEMSCOPE_LIFE_COLUMNS(X)
#undef X
}

void BlockLives::append(LifeTable& table, const Block& block, PoolKey pool, const Belongs& belongs) const {
    const Life& life = lives_[block.life];
    const auto space = spaces_.find(space_key(pool.device_type, pool.device));
    const bool again = is_told_late(block, pool) && space != spaces_.end();
    append(table, life, block, pool, again ? look_again(space->second, life, block, pool) : life.place, belongs);
    table.free_ts.push_back(0);
    table.free_step.push_back(0);
    table.free_seen.push_back(Bool::NO);
    table.alive.push_back(Bool::YES);
}

SegmentTable BlockLives::segments() const {
    SegmentTable table;
    for (const auto& [key, space] : spaces_)
        space.append(table, static_cast<u8>(key >> 16), static_cast<i16>(key & 0xFFFF));
    return table;
}

u32 BlockLives::space_key(u8 device_type, i16 device) noexcept {
    return u32{device_type} << 16 | static_cast<u16>(device);
}

Span BlockLives::span_of(const Block& block, PoolKey pool) noexcept {
    return Span{block.address(), block.size, block.id, pool.pool, has(block.flags, Flag::SHADOW)};
}

bool BlockLives::is_told_late(const Block& block, PoolKey pool) noexcept {
    return has(block.flags, Flag::SHADOW) && !pool.of_driver();
}

Place BlockLives::look_again(const SegmentMap& space, const Life& life, const Block& block, PoolKey pool) noexcept {
    const Place found = space.find(span_of(block, pool));
    return found.segments != 0 ? found : life.place;
}

void BlockLives::append(LifeTable& table, const Life& life, const Block& block, PoolKey pool, const Place& place,
                        const Belongs& belongs) {
    table.allocation_id.push_back(block.id);
    table.device_type.push_back(pool.device_type);
    table.device.push_back(pool.device);
    table.pool.push_back(pool.pool);
    table.ptr.push_back(block.address());
    table.size.push_back(block.size);
    table.malloc_ts.push_back(block.ts);
    table.malloc_step.push_back(block.step);
    table.tid.push_back(block.tid);
    table.stack_py.push_back(life.stack_py);
    table.stack_c.push_back(life.stack_c);
    table.name.push_back(life.name);
    table.op.push_back(life.running.operation);
    table.range.push_back(life.running.range);
    table.attr.push_back(life.attr);
    table.flags.push_back(block.flags);
    table.segments.push_back(place.segments);
    table.segment_ptr.push_back(place.ptr);
    table.segment_size.push_back(place.size);
    table.segment_id.push_back(place.id);
    const Use use = belongs.use != nullptr ? *belongs.use : Use{};
    table.owner.push_back(belongs.owner);
    table.owner_changes.push_back(belongs.changes);
    table.first_access_ts.push_back(use.first_ts);
    table.last_access_ts.push_back(use.last_ts);
    table.accesses.push_back(use.accesses);
    table.reads.push_back(use.reads);
    table.writes.push_back(use.writes);
    table.longest_idle.push_back(use.longest_idle);
    table.inefficient.push_back(belongs.inefficient);
}

}  // namespace memscope::kernel
