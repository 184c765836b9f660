#include "kernel/block_lives.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace memscope::kernel {

namespace {

constexpr std::size_t kFewSites = 1;  // nobody asks for them here, so stacks are folded; each life has its own

constexpr std::size_t kAhead = 8;  // as in the tracker

bool has(u8 flags, Flag flag) noexcept { return (flags & static_cast<u8>(flag)) != 0; }

bool on_card(u8 device_type) noexcept {
    return device_type != static_cast<u8>(DeviceType::CPU) && device_type != static_cast<u8>(DeviceType::NONE);
}

// Memory of a card that a driver gave out: not host memory that it has locked.
bool of_driver(u8 pool, u8 device_type) noexcept {
    return on_card(device_type) && (pool == static_cast<u8>(Pool::HAL) || pool == static_cast<u8>(Pool::CUDA_DRIVER));
}

}  // namespace

BlockLives::BlockLives() : tracker_(kFewSites) {}

void BlockLives::add_process(u32 process, i64 parent) {
    tracker_.add_process(process, parent);
    processes_[process];
}

LifeTable BlockLives::feed(u32 process_id, const EventColumns& events, const LifeColumns& more) {
    LifeTable ended;
    EnrichTable known;
    tracker_.feed(process_id, events, &known);
    Process& process = processes_[process_id];
    for (std::size_t row = 0; row < events.n; ++row) {
        process.step = std::max(process.step, events.step[row]);
        if (row + kAhead < events.n) process.lives.prefetch(known.allocation_id[row + kAhead]);
        switch (static_cast<Kind>(events.kind[row])) {
            case Kind::MALLOC: {
                if (known.ended_id[row] != 0) end(process, known.ended_id[row], events.ts[row], false, ended);
                process.allocs = known.allocation_id[row];
                Life life;
                life.id = known.allocation_id[row];
                life.size = known.size[row];
                life.step = process.step;
                life.attr = more.attr[row];
                life.name = more.name[row];
                life.ts = events.ts[row];
                life.ptr = events.ptr[row];
                life.stack_py = events.stack_py[row];
                life.stack_c = events.stack_c[row];
                life.tid = events.tid[row];
                life.device = events.device[row];
                life.device_type = events.device_type[row];
                life.pool = events.pool[row];
                life.flags = events.flags[row];
                Life& slot = process.lives.claim(life.id);
                slot = life;
                begin(process, slot);
                break;
            }
            case Kind::FREE:
                if (known.allocation_id[row] != 0) end(process, known.allocation_id[row], events.ts[row], true, ended);
                break;
            case Kind::MAP:
                map(process, events, more, row);
                break;
            case Kind::UNMAP:
                unmap(process, events.ptr[row], events.device[row]);
                break;
            default:
                break;
        }
    }
    return ended;
}

LifeTable BlockLives::alive(u32 process_id) const {
    const auto process = processes_.find(process_id);
    std::vector<const Life*> lives;
    if (process != processes_.end()) process->second.lives.each([&lives](const Life& life) { lives.push_back(&life); });
    std::sort(lives.begin(), lives.end(), [](const Life* a, const Life* b) { return a->id < b->id; });
    LifeTable table;
    for (const Life* life : lives) {
        Life row = *life;
        const auto space = process->second.spaces.find(space_key(row.device_type, row.device));
        const bool late = has(row.flags, Flag::SHADOW) && !of_driver(row.pool, row.device_type);
        if (late && space != process->second.spaces.end()) look_again(space->second, row);
        append(table, row, 0, 0, false, true);
    }
    return table;
}

SegmentTable BlockLives::segments() const {
    SegmentTable table;
    for (const auto& [id, process] : processes_)
        for (const auto& [key, space] : process.spaces)
            space.append(table, id, static_cast<u8>(key >> 16), static_cast<i16>(key & 0xFFFF));
    return table;
}

u32 BlockLives::space_key(u8 device_type, i16 device) noexcept {
    return u32{device_type} << 16 | static_cast<u16>(device);
}

Span BlockLives::span_of(const Life& life) noexcept {
    return Span{life.ptr, life.size, life.id, life.pool, has(life.flags, Flag::SHADOW)};
}

// Its segment may have been told after it; one that has ended since is known from the beginning.
void BlockLives::look_again(const SegmentMap& space, Life& life) {
    const Place found = space.find(span_of(life));
    if (found.segments != 0) life.place = found;
}

void BlockLives::begin(Process& process, Life& life) {
    if (!on_card(life.device_type) || life.pool >= Cover::kPools) return;
    SegmentMap& space = process.spaces[space_key(life.device_type, life.device)];
    if (!of_driver(life.pool, life.device_type)) {
        life.place = space.begin(span_of(life));
        return;
    }
    if (has(life.flags, Flag::HANDLE)) {
        process.handles[life.ptr] = Handle{life.id, life.attr, life.pool};
    } else {
        Segment segment;
        segment.ptr = life.ptr;
        segment.size = life.size;
        segment.id = segment.born = life.id;
        segment.attr = life.attr;
        segment.driver = life.pool;
        segment.ts = life.ts;
        segment.step = life.step;
        segment.shadow = has(life.flags, Flag::SHADOW);
        space.add(std::move(segment));
    }
    space.driver_changed(life.size);
}

void BlockLives::end(Process& process, u64 id, u64 ts, bool seen, LifeTable& ended) {
    const Life* found = process.lives.find(id);
    if (found == nullptr) return;
    Life life = *found;
    process.lives.erase(found);
    if (on_card(life.device_type) && life.pool < Cover::kPools) {
        SegmentMap& space = process.spaces[space_key(life.device_type, life.device)];
        if (!of_driver(life.pool, life.device_type)) {
            if (has(life.flags, Flag::SHADOW)) look_again(space, life);
            space.end(span_of(life));
        } else {
            if (has(life.flags, Flag::HANDLE))
                process.handles.erase(life.ptr);
            else
                space.remove(life.ptr, life.id);
            space.driver_changed(-life.size);
        }
    }
    append(ended, life, ts, process.step, seen, false);
}

void BlockLives::map(Process& process, const EventColumns& events, const LifeColumns& more, std::size_t row) {
    const i64 size = events.size[row];
    if (!on_card(events.device_type[row]) || size <= 0 || size > kMaxBlockBytes) return;
    Segment segment;
    segment.ptr = events.ptr[row];
    segment.size = size;
    segment.born = process.allocs;
    segment.driver = events.pool[row];
    segment.ts = events.ts[row];
    segment.step = process.step;
    segment.shadow = has(events.flags[row], Flag::SHADOW);
    const auto handle = process.handles.find(more.attr[row]);
    if (handle != process.handles.end()) {
        segment.id = handle->second.id;
        segment.attr = handle->second.attr;
        segment.driver = handle->second.driver;
    }
    process.spaces[space_key(events.device_type[row], events.device[row])].add(std::move(segment));
}

// The driver needs no device to unmap, so the source may not know it.
void BlockLives::unmap(Process& process, u64 ptr, i16 device) {
    for (auto& [key, space] : process.spaces)
        if (device == kNoDevice || static_cast<i16>(key & 0xFFFF) == device) space.remove(ptr, 0);
}

void BlockLives::append(LifeTable& table, const Life& life, u64 ts, u32 step, bool seen, bool alive) {
    table.allocation_id.push_back(life.id);
    table.device_type.push_back(life.device_type);
    table.device.push_back(life.device);
    table.pool.push_back(life.pool);
    table.ptr.push_back(life.ptr);
    table.size.push_back(life.size);
    table.malloc_ts.push_back(life.ts);
    table.free_ts.push_back(ts);
    table.malloc_step.push_back(life.step);
    table.free_step.push_back(step);
    table.tid.push_back(life.tid);
    table.stack_py.push_back(life.stack_py);
    table.stack_c.push_back(life.stack_c);
    table.name.push_back(life.name);
    table.attr.push_back(life.attr);
    table.flags.push_back(life.flags);
    table.segments.push_back(life.place.segments);
    table.segment_ptr.push_back(life.place.ptr);
    table.segment_size.push_back(life.place.size);
    table.segment_id.push_back(life.place.id);
    table.free_seen.push_back(seen ? Bool::YES : Bool::NO);
    table.alive.push_back(alive ? Bool::YES : Bool::NO);
}

}  // namespace memscope::kernel
