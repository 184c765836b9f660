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
    life.name = events.name[row];
    life.running = running;
    life.place = {};
    if (is_placed(pool)) enter(life, block, pool);
}

void BlockLives::enter(Life& life, const Block& block, PoolKey pool) {
    SegmentMap& space = space_of(pool);
    if (!pool.of_driver()) {
        life.place = space.begin(span_of(block, pool));
        return;
    }
    if (has(block.flags, Flag::HANDLE)) {
        handles_[block.address()] = Handle{block.id, block.attr, pool.pool};
    } else {
        Segment segment;
        segment.ptr = block.address();
        segment.size = block.size;
        segment.id = segment.born = block.id;
        segment.attr = block.attr;
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
        SegmentMap& space = space_of(pool);
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
    append(ended_, *latest_, life, block, pool, place, belongs, End{ts, step, seen, false});
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
    const auto handle = handles_.find(events.attr[row]);
    if (handle != handles_.end()) {
        segment.id = handle->second.id;
        segment.attr = handle->second.attr;
        segment.driver = handle->second.driver;
    }
    space_of(pool).add(std::move(segment));
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

SegmentMap& BlockLives::space_of(PoolKey pool) {
    const u32 key = space_key(pool.device_type, pool.device);
    if (latest_space_ == nullptr || latest_key_ != key) {
        latest_space_ = &spaces_[key];
        latest_key_ = key;
    }
    return *latest_space_;
}

LifeTable BlockLives::take_ended() {
    latest_->flush(ended_);
    latest_->expect(ended_.ptr.size());  // growing means copying
    return std::exchange(ended_, {});
}

void BlockLives::shrink() {
    latest_->flush(ended_);
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

void BlockLives::append(LifeTable& table, LifeRows& rows, const Block& block, PoolKey pool,
                        const Belongs& belongs) const {
    const Life& life = lives_[block.life];
    const auto space = spaces_.find(space_key(pool.device_type, pool.device));
    const bool again = is_told_late(block, pool) && space != spaces_.end();
    const Place place = again ? look_again(space->second, life, block, pool) : life.place;
    append(table, rows, life, block, pool, place, belongs, End{});
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

void BlockLives::append(LifeTable& table, LifeRows& rows, const Life& life, const Block& block, PoolKey pool,
                        const Place& place, const Belongs& belongs, const End& end) {
    const Use use = belongs.use != nullptr ? *belongs.use : Use{};
    const std::size_t at = rows.add(table);
    LifeRows::Columns& row = rows.columns();
    row.allocation_id[at] = block.id;
    row.device_type[at] = pool.device_type;
    row.device[at] = pool.device;
    row.pool[at] = pool.pool;
    row.ptr[at] = block.address();
    row.size[at] = block.size;
    row.malloc_ts[at] = block.ts;
    row.free_ts[at] = end.ts;
    row.malloc_step[at] = block.step;
    row.free_step[at] = end.step;
    row.tid[at] = block.tid;
    row.stack_py[at] = life.stack_py;
    row.stack_c[at] = life.stack_c;
    row.name[at] = life.name;
    row.op[at] = life.running.operation;
    row.range[at] = life.running.range;
    row.attr[at] = pool.has_streams() ? 0 : block.attr;
    row.stream[at] = pool.has_streams() ? static_cast<u32>(block.attr) : kNoStream;
    row.flags[at] = block.flags;
    row.segments[at] = place.segments;
    row.segment_ptr[at] = place.ptr;
    row.segment_size[at] = place.size;
    row.segment_id[at] = place.id;
    row.free_seen[at] = end.is_seen ? Bool::YES : Bool::NO;
    row.alive[at] = end.is_alive ? Bool::YES : Bool::NO;
    row.owner[at] = belongs.owner;
    row.owner_changes[at] = belongs.changes;
    row.first_access_ts[at] = use.first_ts;
    row.last_access_ts[at] = use.last_ts;
    row.accesses[at] = use.accesses;
    row.reads[at] = use.reads;
    row.writes[at] = use.writes;
    row.longest_idle[at] = use.longest_idle;
    row.inefficient[at] = belongs.inefficient.words;
    row.inefficient_by_host[at] = belongs.inefficient.by_host;
}

}  // namespace memscope::kernel
