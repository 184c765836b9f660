// Interning: which strings, frames and stacks this process has already defined in its ring.
//
// One table maps a 64-bit key to the 64-bit id that events carry. Nobody locks it: whoever meets a key for the first
// time writes the definition into the ring and then enters the key; two threads that meet it at once both define it,
// which readers allow. A key becomes visible only after its definition stands in the ring, so every later use of the id
// has a higher offset. The table never grows: past 3/4 of its slots a new key is refused and its events carry id 0 with
// flag STACK_LOST.
#pragma once

#include <atomic>

#include "record/record.h"

namespace memscope {

class InternTable {
public:
    // Reserves address space for `slots` (a power of two) entries of 16 bytes; pages are touched as they fill.
    bool create(u32 slots) noexcept;
    bool is_open() const noexcept { return slots_ != nullptr; }

    // The id of `key`, or 0 when it is not known or just being entered. Lock-free.
    u64 find(u64 key) const noexcept {
        for (u32 at = static_cast<u32>(mix64(key)) & mask_;; at = (at + 1) & mask_) {
            const u64 found = slots_[at].key.load(std::memory_order_acquire);
            if (found == key) return slots_[at].id.load(std::memory_order_acquire);
            if (found == 0) return 0;
        }
    }

    // Enters a key whose definition stands in the ring. Lock-free. Nothing when the table is full.
    void insert(u64 key, u64 id) noexcept;
    bool is_full() const noexcept { return used() >= (mask_ + 1) / 4 * 3; }
    u32 used() const noexcept { return used_.load(std::memory_order_relaxed); }

    // Forgets everything (a forked child begins a ring of its own).
    void clear() noexcept;

private:
    struct Slot {
        std::atomic<u64> key;
        std::atomic<u64> id;  // after the key
    };
    Slot* slots_ = nullptr;
    u32 mask_ = 0;
    std::atomic<u32> used_{0};
};

}  // namespace memscope
