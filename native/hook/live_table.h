// A table of blocks by address, for sources that must know at a free what was said at the allocation.
//
// Open addressing in 64 shards, each with its own spin lock, held for one probe (drain: for one look through a shard).
// The memory comes from mmap: nothing here calls an allocator that may be hooked. A table that cannot grow keeps what
// it has and counts what it could not take. Trivially constructed and never destroyed: usable before main and after
// exit handlers.
#pragma once

#include <atomic>

#include "record/record.h"

namespace memscope {

struct LiveBlock {
    u64 key;  // 0: empty slot; the address, or whatever names the block
    u64 ptr;
    i64 size;
    u64 ts;  // of the allocation
    u64 attr;
    const char* name;  // a literal, or nullptr
    u32 tid;
    i16 device;
    u8 device_type;
    u8 pool;
    u8 flags;
    u8 kind;  // Kind of the event that put it here
    u32 stream;
};

class LiveTable {
public:
    // Puts the block in, in place of one with the same key, which goes to `replaced` (key 0: there was none). False:
    // there was no memory.
    bool insert(const LiveBlock& block, LiveBlock* replaced = nullptr) noexcept;
    // Takes the block out. False: it is not there, which costs no lock when the shard is empty.
    bool take(u64 key, LiveBlock& out) noexcept;
    // A copy. False: it is not there.
    bool find(u64 key, LiveBlock& out) noexcept;
    // Visits every block and takes it out. Whoever asks for the very block that is being visited waits until that is
    // done, so that what the visit tells comes before what they tell; nothing else waits, and no lock is held. The
    // visitor must not come back to its block.
    void drain(void (*visit)(const LiveBlock&)) noexcept;
    u64 count() const noexcept;
    u64 refused() const noexcept { return refused_.load(std::memory_order_relaxed); }
    // In a forked child: whoever held a lock is not there any more, and the blocks are the parent's.
    void reset_after_fork(bool forget) noexcept;

private:
    static constexpr u32 kShards = 64;
    struct alignas(64) Shard {
        std::atomic<bool> locked;
        std::atomic<u32>
            used;  // slots that are not empty; written under the lock, and in no line that all shards share
        u64 capacity;
        LiveBlock* slots;
        u64 visited;  // key of the block that is being visited; 0: none
    };
    class Lock;
    static bool next_to_visit(Shard& shard, LiveBlock& out, u64& place) noexcept;

    Shard& shard_of(u64 key) noexcept { return shards_[mix64(key) >> 58]; }
    static LiveBlock* probe(const Shard& shard, u64 key) noexcept;  // its slot, or the empty one where it belongs
    static void count_in(Shard& shard, i32 change) noexcept;
    static void erase(Shard& shard, LiveBlock* slot) noexcept;
    static bool grow(Shard& shard) noexcept;
    static void give_back(Shard& shard) noexcept;

    Shard shards_[kShards];
    std::atomic<u64> refused_;
};

}  // namespace memscope
