// How ranks wait for each other: they are processes of one machine, so by looking.
#pragma once

#include <sched.h>
#include <unistd.h>
#include <cstdio>
#include <ctime>

// Waits until `is_done`; says on stderr and returns false when that takes two minutes.
template <typename Condition>
bool wait_until(Condition is_done) {
    constexpr int kLooks = 200;  // before the first sleep
    constexpr time_t kMostSeconds = 120;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const time_t end = now.tv_sec + kMostSeconds;
    for (int i = 0; !is_done(); ++i) {
        if (i < kLooks) {
            sched_yield();
            continue;
        }
        usleep(50);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec <= end) continue;
        fprintf(stderr, "[npusim] hccl: the other ranks did not arrive\n");
        return false;
    }
    return true;
}
