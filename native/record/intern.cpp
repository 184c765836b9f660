#include "record/intern.h"

#include <sys/mman.h>

namespace memscope {

bool InternTable::create(u32 slots) noexcept {
    if (slots_ != nullptr) return true;
    void* space =
        mmap(nullptr, slots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return false;
    mask_ = slots - 1;
    used_ = 0;
    slots_ = static_cast<Slot*>(space);
    return true;
}

bool InternTable::insert(u64 key, u64 id) noexcept {
    if (is_full()) return false;
    u32 at = static_cast<u32>(mix64(key)) & mask_;
    while (slots_[at].key.load(std::memory_order_relaxed) != 0) at = (at + 1) & mask_;
    slots_[at].id.store(id, std::memory_order_relaxed);
    slots_[at].key.store(key, std::memory_order_release);
    ++used_;
    return true;
}

void InternTable::clear() noexcept {
    if (slots_ == nullptr) return;
    madvise(static_cast<void*>(slots_), (mask_ + 1ull) * sizeof(Slot),
            MADV_DONTNEED);  // private anonymous: zeros again
    used_ = 0;
}

}  // namespace memscope
