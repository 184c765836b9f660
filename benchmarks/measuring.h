// What the native benchmarks share: time on the processor, the median of rounds, and a session whose ring is emptied.
#pragma once

#include <dirent.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "hook/recorder.h"
#include "hook/settings.h"
#include "own_directory.h"
#include "record/ring.h"

namespace measuring {

using namespace memscope;

inline u64 clock_ns(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000ull + static_cast<u64>(now.tv_nsec);
}

// Time on the processor, not on the clock: what else the machine does is not our cost.
inline u64 thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// The ring in the directory, for whoever makes room in it; stays closed until there is one.
inline void open_ring(const std::string& directory, Ring& ring) {
    DIR* entries = opendir(directory.c_str());
    while (const dirent* entry = readdir(entries)) {
        const std::string file = entry->d_name;
        if (file.size() > 5 && file.substr(file.size() - 5) == ".ring")
            ring.open((directory + "/" + file).c_str(), true);
    }
    closedir(entries);
}

// A session of this process alone. A thread makes room in its ring, as the agent does; the directory goes at the end.
class EmptiedSession {
public:
    EmptiedSession() {
        directory_ = own::make_directory("memscope-bench-emptied-");
        memscope_set_session(directory_.c_str());
        memscope_configure("ring_wait_ms=1000");
        reader_ = std::thread([this] { empty(); });
    }
    ~EmptiedSession() {
        done_ = true;
        reader_.join();
        const std::string clean = "rm -rf " + directory_;
        if (std::system(clean.c_str()) != 0) std::perror(directory_.c_str());
    }
    EmptiedSession(const EmptiedSession&) = delete;
    EmptiedSession& operator=(const EmptiedSession&) = delete;

private:
    void empty() {
        Ring ring;
        while (!done_) {
            if (!ring.is_open()) {
                open_ring(directory_, ring);
            } else {
                u64 at = ring.header->acked.load();
                while (ring.peek(at).length != 0 && at < ring.header->head.load()) at += ring.peek(at).length;
                ring.release(at);
            }
            usleep(1000);
        }
    }

    std::string directory_;
    std::atomic<bool> done_{false};
    std::thread reader_;
};

}  // namespace measuring
