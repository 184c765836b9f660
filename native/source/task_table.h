// Launched tasks that have not been seen to end. Filled by the threads that launch, emptied by the reader of the
// driver's log.
//
// Bounded and without searching: a key belongs to one set of a few places with a lock of its own, held for a look at
// them. In a full set the one that has waited longest gives way. The memory is mapped, untouched until used.
#pragma once

#include <sys/mman.h>
#include <atomic>

#include "hook/spin_lock.h"
#include "source/launch.h"

namespace memscope {

class TaskTable {
public:
    // False: there is no memory.
    bool create() noexcept {
        if (sets_.load(std::memory_order_acquire) != nullptr) return true;
        void* const place = mmap(nullptr, sizeof(Set) * kSets, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (place == MAP_FAILED) return false;
        Set* none = nullptr;
        if (!sets_.compare_exchange_strong(none, static_cast<Set*>(place), std::memory_order_acq_rel))
            munmap(place, sizeof(Set) * kSets);
        return true;
    }

    // False: another task, the longest waiting one or the last of this number, was given up for it.
    bool put(u64 key, const Launched& launched) noexcept {
        Set& set = set_of(key);
        const SpinLock lock(set.locked);
        u32 at = find(set, key);
        if (at == kPlaces) at = find(set, 0);
        if (at == kPlaces) at = oldest(set);
        const bool was_free = set.keys[at] == 0;
        set.keys[at] = key;
        set.tasks[at] = {launched, launched.ts};
        return was_free;
    }

    // The task began at `ts`, which becomes the launch's when it lies before. False: no such launch.
    bool begin(u64 key, u64& ts, Launched& launched) noexcept {
        Set& set = set_of(key);
        const SpinLock lock(set.locked);
        const u32 at = find(set, key);
        if (at == kPlaces) return false;
        launched = set.tasks[at].launched;
        if (ts < launched.ts) ts = launched.ts;
        set.tasks[at].began = ts;
        return true;
    }

    // The task ended at `ts`, which becomes that of its begin when it lies before. It is forgotten.
    bool end(u64 key, u64& ts, Launched& launched) noexcept {
        Set& set = set_of(key);
        const SpinLock lock(set.locked);
        const u32 at = find(set, key);
        if (at == kPlaces) return false;
        launched = set.tasks[at].launched;
        if (ts < set.tasks[at].began) ts = set.tasks[at].began;
        set.keys[at] = 0;
        return true;
    }

    // In a forked child: the tasks are the parent's, and whoever held a lock is not there.
    void clear_after_fork() noexcept {
        Set* const sets = sets_.load(std::memory_order_relaxed);
        if (sets != nullptr)
            mmap(sets, sizeof(Set) * kSets, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }

private:
    static constexpr u32 kSets = 1u << 14, kPlaces = 7;
    struct WaitingTask {
        Launched launched;
        u64 began;  // not before it was launched
    };
    struct alignas(64) Set {
        std::atomic<bool> locked;
        u64 keys[kPlaces];  // 0: free; with the lock in one cache line, which settles most look-ups
        WaitingTask tasks[kPlaces];
    };

    // Tasks of one stream come one after the other, and so do their sets: those that wait are spread evenly.
    Set& set_of(u64 key) const noexcept {
        return sets_.load(std::memory_order_acquire)[(mix64(key >> 16) + key) % kSets];
    }
    static u32 find(const Set& set, u64 key) noexcept {  // kPlaces: not there
        u32 at = 0;
        while (at < kPlaces && set.keys[at] != key) ++at;
        return at;
    }
    static u32 oldest(const Set& set) noexcept {
        u32 oldest = 0;
        for (u32 at = 1; at < kPlaces; ++at)
            if (set.tasks[at].launched.ts < set.tasks[oldest].launched.ts) oldest = at;
        return oldest;
    }

    std::atomic<Set*> sets_;
};

}  // namespace memscope
