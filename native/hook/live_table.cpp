#include "hook/live_table.h"

#include <sys/mman.h>

#include "hook/spin_lock.h"

namespace memscope {

// Of a shard, once `may_go_on` holds for the key of the block that is being visited.
class LiveTable::Lock {
public:
    template <typename Condition>
    Lock(Shard& shard, const Condition& may_go_on) noexcept : shard_(shard) {
        for (u32 looks = 0;; wait_a_moment(looks)) {
            if (shard_.locked.exchange(true, std::memory_order_acquire)) continue;
            if (may_go_on(shard_.visited)) return;
            shard_.locked.store(false, std::memory_order_release);
        }
    }
    // For work on `key`.
    Lock(Shard& shard, u64 key) noexcept : Lock(shard, [key](u64 visited) { return visited != key; }) {}
    ~Lock() { shard_.locked.store(false, std::memory_order_release); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    Shard& shard_;
};

void LiveTable::count_in(Shard& shard, i32 change) noexcept {
    // No read-modify-write: only who holds the lock writes.
    const u32 used = shard.used.load(std::memory_order_relaxed);
    shard.used.store(used + static_cast<u32>(change), std::memory_order_release);
}

LiveBlock* LiveTable::probe(const Shard& shard, u64 key) noexcept {
    const u64 mask = shard.capacity - 1;
    u64 at = mix64(key) & mask;
    while (shard.slots[at].key != 0 && shard.slots[at].key != key) at = (at + 1) & mask;
    return &shard.slots[at];
}

// Moves later blocks of the same run of slots forward, so that no mark of deletion is needed (Knuth 6.4, algorithm R).
void LiveTable::erase(Shard& shard, LiveBlock* slot) noexcept {
    const u64 mask = shard.capacity - 1;
    u64 hole = static_cast<u64>(slot - shard.slots);
    for (u64 at = (hole + 1) & mask; shard.slots[at].key != 0; at = (at + 1) & mask) {
        const u64 home = mix64(shard.slots[at].key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            shard.slots[hole] = shard.slots[at];
            hole = at;
        }
    }
    shard.slots[hole].key = 0;
    count_in(shard, -1);
}

bool LiveTable::grow(Shard& shard) noexcept {
    const u64 capacity = shard.capacity == 0 ? 64 : shard.capacity * 2;
    void* memory =
        mmap(nullptr, capacity * sizeof(LiveBlock), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    LiveBlock* const old = shard.slots;
    const u64 old_capacity = shard.capacity;
    shard.slots = static_cast<LiveBlock*>(memory);
    shard.capacity = capacity;
    for (u64 i = 0; i < old_capacity; ++i)
        if (old[i].key != 0) *probe(shard, old[i].key) = old[i];
    if (old != nullptr) munmap(old, old_capacity * sizeof(LiveBlock));
    return true;
}

void LiveTable::give_back(Shard& shard) noexcept {
    if (shard.slots != nullptr) munmap(shard.slots, shard.capacity * sizeof(LiveBlock));
    shard.slots = nullptr;
    shard.capacity = 0;
    shard.used.store(0, std::memory_order_release);  // the visits of drain() come before this
}

bool LiveTable::insert(const LiveBlock& block, LiveBlock* replaced) noexcept {
    if (replaced != nullptr) replaced->key = 0;
    if (block.key == 0) return false;
    Shard& shard = shard_of(block.key);
    const Lock lock(shard, block.key);
    // At most three quarters full; when there is no memory for more, up to the last empty slot, which ends a probe.
    const u64 used = shard.used.load(std::memory_order_relaxed);
    if (used * 4 >= shard.capacity * 3 && !grow(shard) && used + 1 >= shard.capacity) {
        refused_.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    LiveBlock* slot = probe(shard, block.key);
    if (slot->key == 0) {
        count_in(shard, +1);
    } else if (replaced != nullptr) {
        *replaced = *slot;
    }
    *slot = block;
    return true;
}

bool LiveTable::take(u64 key, LiveBlock& out) noexcept {
    if (key == 0) return false;
    Shard& shard = shard_of(key);
    // Whoever asks for a block comes after who put it in, so an empty shard means that it is not there, or that drain()
    // has visited it.
    if (shard.used.load(std::memory_order_acquire) == 0) return false;
    const Lock lock(shard, key);
    if (shard.capacity == 0) return false;
    LiveBlock* slot = probe(shard, key);
    if (slot->key == 0) return false;
    out = *slot;
    erase(shard, slot);
    return true;
}

bool LiveTable::find(u64 key, LiveBlock& out) noexcept {
    if (key == 0) return false;
    Shard& shard = shard_of(key);
    const Lock lock(shard, key);
    if (shard.capacity == 0) return false;
    const LiveBlock* slot = probe(shard, key);
    if (slot->key == 0) return false;
    out = *slot;
    return true;
}

u64 LiveTable::count() const noexcept {
    u64 count = 0;
    for (const Shard& shard : shards_) count += shard.used.load(std::memory_order_relaxed);
    return count;
}

// Takes out the block that was visited before, `out`, and marks the next one, which is found at `place` or behind.
// False: the shard is empty, and given back.
bool LiveTable::next_to_visit(Shard& shard, LiveBlock& out, u64& place) noexcept {
    const u64 mine = out.key;
    const Lock lock(shard, [mine](u64 visited) { return visited == mine || visited == 0; });
    if (shard.visited != 0) erase(shard, probe(shard, shard.visited));
    shard.visited = 0;
    if (shard.used.load(std::memory_order_relaxed) == 0) {
        give_back(shard);
        return false;
    }
    place &= shard.capacity - 1;
    while (shard.slots[place].key == 0) place = (place + 1) & (shard.capacity - 1);
    out = shard.slots[place];
    shard.visited = out.key;
    return true;
}

void LiveTable::drain(void (*visit)(const LiveBlock&)) noexcept {
    for (Shard& shard : shards_) {
        LiveBlock block = {};
        for (u64 place = 0; next_to_visit(shard, block, place);) visit(block);
    }
}

void LiveTable::reset_after_fork(bool forget) noexcept {
    for (Shard& shard : shards_) {
        shard.locked.store(false, std::memory_order_relaxed);
        shard.visited = 0;
        if (forget) give_back(shard);
    }
}

}  // namespace memscope
