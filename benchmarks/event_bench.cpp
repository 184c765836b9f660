// What one memory event costs beyond the hooked call: pairs of MALLOC and FREE through libraries that stand for
// torch's, without hooks, with hooks and recording off, and recording. A reader thread makes room, as the agent
// does. Prints the median of rounds; figures of one process, so ratios hold on a noisy machine.
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
#include "record/ring.h"

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
void early_allocate(void* ptr, std::size_t bytes);
void early_release(void* ptr);
}

using namespace memscope;

namespace {

constexpr int kPairs = 200'000;
constexpr int kRounds = 15;

// Time on the processor, not on the clock: what else the machine does is not our cost.
u64 thread_cpu_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000ull + static_cast<u64>(now.tv_nsec);
}

double round_ns_per_event() {
    const u64 begin = thread_cpu_ns();
    for (int i = 0; i < kPairs; ++i) {
        void* const block = reinterpret_cast<void*>(0x1000 + 64ull * static_cast<u64>(i % 1000));
        early_allocate(block, 512);
        early_release(block);
    }
    return static_cast<double>(thread_cpu_ns() - begin) / (2.0 * kPairs);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main() {
    char name[] = "/dev/shm/memscope-event-bench-XXXXXX";
    const std::string directory = mkdtemp(name);
    memscope_set_session(directory.c_str());
    memscope_set_wait_ns(1'000'000'000);
    std::atomic<bool> done{false};
    std::thread reader([&] {
        Ring ring;
        while (!done.load()) {
            if (!ring.is_open()) {
                DIR* entries = opendir(directory.c_str());
                while (const dirent* entry = readdir(entries)) {
                    const std::string file = entry->d_name;
                    if (file.size() > 5 && file.substr(file.size() - 5) == ".ring")
                        ring.open((directory + "/" + file).c_str(), true);
                }
                closedir(entries);
            } else {
                u64 at = ring.header->acked.load();
                while (ring.peek(at).length != 0 && at < ring.header->head.load()) at += ring.peek(at).length;
                ring.release(at);
            }
            usleep(1000);
        }
    });
    std::vector<double> plain, off, on;
    for (int i = 0; i < kRounds; ++i) {
        memscope_remove_hooks();
        plain.push_back(round_ns_per_event());
        memscope_install_hooks();
        off.push_back(round_ns_per_event());
        memscope_start();
        on.push_back(round_ns_per_event());
        memscope_stop();
    }
    done = true;
    reader.join();
    memscope_stats stats;
    memscope_get_stats(&stats);
    printf("per event, median of %d rounds of %d pairs\n", kRounds, kPairs);
    printf("  not hooked          %7.1f ns\n", median(plain));
    printf("  hooked, off         %7.1f ns\n", median(off));
    printf("  recording           %7.1f ns   (+%.1f ns, lost %llu)\n", median(on), median(on) - median(plain),
           stats.lost);
    const std::string clean = "rm -rf " + directory;
    return std::system(clean.c_str());
}
