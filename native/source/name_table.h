// Texts by id, kept for as long as the process lives: a kernel's name is told once, maybe long before there is a ring
// in which it could be defined. Bounded: what does not fit is refused and counted. Read without a lock.
#pragma once

#include <sys/mman.h>
#include <atomic>
#include <cstring>

#include "hook/spin_lock.h"
#include "record/record.h"

namespace memscope {

class NameTable {
public:
    struct Name {
        const char* text;  // nullptr: not known
        u32 bytes;
    };

    // False: there is no room.
    bool insert(u64 id, const char* text, u32 bytes) noexcept {
        if (find(id).text != nullptr) return true;
        const SpinLock lock(locked_);
        return find(id).text != nullptr || add(id, text, bytes);
    }

    Name find(u64 id) const noexcept {
        const Slot* slots = slots_.load(std::memory_order_acquire);
        if (slots == nullptr) return {nullptr, 0};
        for (u64 at = mix64(id) % kSlots;; at = (at + 1) % kSlots) {
            const u64 known = slots[at].id.load(std::memory_order_acquire);
            if (known == id) return slots[at].name;
            if (known == 0) return {nullptr, 0};
        }
    }

    // In a forked child, where whoever held the lock is not.
    void unlock_after_fork() noexcept { locked_.store(false, std::memory_order_relaxed); }

    static constexpr u32 kMostNames = 1u << 15;
    static constexpr u64 kTextBytes = 4u << 20;

private:
    static constexpr u64 kSlots = 2 * kMostNames;
    struct Slot {
        std::atomic<u64> id;  // set last
        Name name;
    };

    bool add(u64 id, const char* text, u32 bytes) noexcept {
        Slot* slots = slots_.load(std::memory_order_relaxed);
        if (slots == nullptr) {
            void* place = mmap(nullptr, kSlots * sizeof(Slot) + kTextBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (place == MAP_FAILED) return false;
            slots = static_cast<Slot*>(place);
            slots_.store(slots, std::memory_order_release);
        }
        if (names_ >= kMostNames || bytes > kTextBytes - text_used_) return false;
        char* const copy = reinterpret_cast<char*>(slots + kSlots) + text_used_;
        memcpy(copy, text, bytes);
        u64 at = mix64(id) % kSlots;
        while (slots[at].id.load(std::memory_order_relaxed) != 0) at = (at + 1) % kSlots;
        slots[at].name = {copy, bytes};
        slots[at].id.store(id, std::memory_order_release);
        text_used_ += bytes;
        ++names_;
        return true;
    }

    std::atomic<Slot*> slots_;
    std::atomic<bool> locked_;
    u32 names_;
    u64 text_used_;
};

}  // namespace memscope
