#include "record/intern.h"

#include <sys/mman.h>

namespace memscope {

bool InternTable::create(u32 slots) noexcept {
    if (slots_ != nullptr) return true;
    void* space =
        mmap(nullptr, slots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return false;
    mask_ = slots - 1;
    used_.store(0, std::memory_order_relaxed);
    slots_ = static_cast<Slot*>(space);
    return true;
}

void InternTable::insert(u64 key, u64 id) noexcept {
    if (is_full()) return;
    for (u32 at = static_cast<u32>(mix64(key)) & mask_;; at = (at + 1) & mask_) {
        u64 there = slots_[at].key.load(std::memory_order_relaxed);
        if (there == 0 && slots_[at].key.compare_exchange_strong(there, key, std::memory_order_relaxed)) {
            used_.fetch_add(1, std::memory_order_relaxed);
            there = key;
        }
        if (there != key) continue;
        slots_[at].id.store(id, std::memory_order_release);  // two threads store the same
        return;
    }
}

void InternTable::clear() noexcept {
    if (slots_ == nullptr) return;
    madvise(static_cast<void*>(slots_), (mask_ + 1ull) * sizeof(Slot),
            MADV_DONTNEED);  // private anonymous: zeros again
    used_.store(0, std::memory_order_relaxed);
}

}  // namespace memscope
