// A lock for a few stores. Nobody holds it while calling out or waiting for anything.
//
// Who finds it taken looks again a few times, then sleeps between two looks: a real-time thread that only yielded would
// keep a preempted thread of lower priority, which holds the lock, from ever running.
#pragma once

#include <sched.h>
#include <time.h>
#include <atomic>
#include <cerrno>

#include "record/record.h"

namespace memscope {

// Between two looks at what another thread is about to finish; `looks` begins at 0.
inline void wait_a_moment(u32& looks) noexcept {
    constexpr u32 kSpinning = 64, kYielding = 128;
    constexpr timespec kNap = {0, 50'000};
    if (++looks < kSpinning) return;
    if (looks < kYielding) {
        sched_yield();
        return;
    }
    const int error = errno;
    nanosleep(&kNap, nullptr);
    errno = error;
}

class SpinLock {
public:
    explicit SpinLock(std::atomic<bool>& word) noexcept : word_(word) {
        for (u32 looks = 0; word_.exchange(true, std::memory_order_acquire);) wait_a_moment(looks);
    }
    ~SpinLock() { word_.store(false, std::memory_order_release); }
    SpinLock(const SpinLock&) = delete;
    SpinLock& operator=(const SpinLock&) = delete;

private:
    std::atomic<bool>& word_;
};

}  // namespace memscope
