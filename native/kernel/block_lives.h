// Follows blocks from their MALLOC to their end, one row per life, with the driver segment they were cut from.
//
// In: the same batches as the block tracker's, with two columns more. Out: the rows of lives that ended in a batch, and
// at the end the rows of those that go on; the segments. Which MALLOC a FREE belongs to is the tracker's to say: this
// has one of its own, without stacks, and adds what that does not keep. Memory: 112 bytes per slot for live blocks
// beside the tracker's 48 (block_map.h: together 229 to 457 per block), some 420 bytes per live segment.
#pragma once

#include <map>
#include <unordered_map>

#include "kernel/block_map.h"
#include "kernel/block_tracker.h"
#include "kernel/segment_map.h"
#include "kernel/tables.h"

namespace memscope::kernel {

// Columns beside those of the tracker. type, name
#define MEMSCOPE_LIFE_INPUT_COLUMNS(X) \
    X(u64, name)                       \
    X(u64, attr)

struct LifeColumns {
#define X(type, name) Column<type> name;
    MEMSCOPE_LIFE_INPUT_COLUMNS(X)
#undef X
};

class BlockLives {
public:
    BlockLives();

    // As of BlockTracker.
    void add_process(u32 process, i64 parent);
    bool has_process(u32 process) const { return tracker_.has_process(process); }

    // The next events of `process`, in ring order. Returns the lives that ended in them, in the order of their ends.
    LifeTable feed(u32 process, const EventColumns& events, const LifeColumns& more);

    // The lives of `process` that have not ended, in the order of allocation.
    LifeTable alive(u32 process) const;
    SegmentTable segments() const;

private:
    struct Life {
        u64 id = 0;  // allocation id; 0 marks an empty slot
        u64 ptr = 0, ts = 0, stack_py = 0, stack_c = 0, name = 0, attr = 0;
        i64 size = 0;
        Place place;
        u32 step = 0, tid = 0;
        i16 device = 0;
        u8 device_type = 0, pool = 0, flags = 0;
    };
    static_assert(sizeof(Life) == 112);
    struct Handle {
        u64 id, attr;
        u8 driver;
    };
    struct Process {
        u32 step = 0;
        u64 allocs = 0;  // number of the latest block
        EntryMap<Life, &Life::id> lives;
        std::map<u32, SegmentMap> spaces;  // by device type and device
        std::unordered_map<u64, Handle> handles;
    };

    static u32 space_key(u8 device_type, i16 device) noexcept;
    static Span span_of(const Life& life) noexcept;
    static void look_again(const SegmentMap& space, Life& life);
    static void begin(Process& process, Life& life);
    static void end(Process& process, u64 id, u64 ts, bool seen, LifeTable& ended);
    static void map(Process& process, const EventColumns& events, const LifeColumns& more, std::size_t row);
    static void unmap(Process& process, u64 ptr, i16 device);
    static void append(LifeTable& table, const Life& life, u64 ts, u32 step, bool seen, bool alive);

    BlockTracker tracker_;
    std::map<u32, Process> processes_;
};

}  // namespace memscope::kernel
