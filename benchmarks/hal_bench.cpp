// What a pair of halMemAlloc and halMemFree costs beyond the driver's own work, with 1,000 blocks live and random ones
// released: without hooks, recording without stacks, and recording with a native stack of 20 frames that was seen
// before. Rounds of the three ways alternate in one process, so ratios hold on a noisy machine. Nobody reads the ring
// while a round is timed; it is emptied between rounds.
//
// Three drivers: one that does nothing (what is left is our cost), the same between two calls into the kernel that map
// and unmap a page (as a real driver does for each pair; what the kernel costs our caches shows here), and the
// simulated one. `hal_bench pairs N hooked|plain|stack` runs N pairs and nothing else, for a tool that counts
// instructions.
#include <dlfcn.h>
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cann.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "measuring.h"
#include "own_directory.h"
#include "record/ring.h"
#include "stack/stacks.h"

using namespace memscope;
using namespace measuring;

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
}

namespace {

constexpr u32 kLive = 1000;
constexpr int kRounds = 15;
constexpr u32 kFrames = 20;

using Allocate = int (*)(void**, unsigned long long, unsigned long long);
using Release = int (*)(void*);

// dlsym() gives the replacement while hooks are installed.
struct Driver {
    const char* name;
    void* library;
    int pairs;
    bool maps = false;
    Allocate allocate = nullptr;
    Release release = nullptr;

    void look_up() {
        allocate = reinterpret_cast<Allocate>(dlsym(library, "halMemAlloc"));
        release = reinterpret_cast<Release>(dlsym(library, "halMemFree"));
    }
};

void visit_kernel() {
    constexpr std::size_t kPage = 4096;
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || munmap(page, kPage) != 0) abort();
}

void run_pairs(const Driver& driver, int pairs, u32 device) {
    static thread_local void* slots[2 * kLive];
    u64 random = 88172645463325252ull + device;
    int allocated = 0, released = 0;
    while (released < pairs) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        void*& slot = slots[random % (2 * kLive)];
        if (slot != nullptr) {
            driver.release(slot);
            slot = nullptr;
            ++released;
        } else if (allocated < pairs) {
            if (driver.maps) visit_kernel();
            if (driver.allocate(&slot, 4096, MEMF_DEV | MEMF_HBM | 33ull << MEMF_MODULE_SHIFT | device) != 0) abort();
            ++allocated;
        } else {
            for (void*& left : slots)
                if (left != nullptr) {
                    driver.release(left);
                    left = nullptr;
                    ++released;
                }
        }
    }
}

__attribute__((noinline)) void run_deep(u32 depth, const Driver& driver, int pairs, u32 device) {
    if (depth == 0)
        run_pairs(driver, pairs, device);
    else
        run_deep(depth - 1, driver, pairs, device);
    asm volatile("" ::: "memory");
}

class OwnRing {
public:
    explicit OwnRing(const std::string& directory) : directory_(directory) {}
    void empty() {
        if (!ring_.is_open()) {
            open_ring(directory_, ring_);
        }
        if (ring_.is_open()) ring_.release(ring_.header->head.load());
    }

private:
    std::string directory_;
    Ring ring_;
};

enum Way { PLAIN, HOOKED, STACK, WAYS };

void set_way(Way way, Driver& driver) {
    memscope_configure(("native_depth=" + std::to_string(way == STACK ? kFrames : 0)).c_str());
    if (way == PLAIN) {
        memscope_stop();
        memscope_remove_hooks();
    } else {
        memscope_install_hooks();
        memscope_start();
    }
    driver.look_up();
}

void measure(Driver& driver, OwnRing& ring) {
    std::vector<double> pair_ns[WAYS];
    for (int round = 0; round < kRounds; ++round)
        for (const Way way : {PLAIN, HOOKED, STACK}) {
            set_way(way, driver);
            const u64 begin = thread_cpu_ns();
            run_deep(kFrames, driver, driver.pairs, 0);
            pair_ns[way].push_back(static_cast<double>(thread_cpu_ns() - begin) / driver.pairs);
            ring.empty();
        }
    std::vector<double> beyond[WAYS];
    for (int way = 0; way < WAYS; ++way)
        for (std::size_t i = 0; i < kRounds; ++i) beyond[way].push_back(pair_ns[way][i] - pair_ns[PLAIN][i]);
    printf("%s: ns of CPU time per pair, median of %d rounds of %d pairs\n", driver.name, kRounds, driver.pairs);
    printf("  not hooked                        %7.0f\n", median(pair_ns[PLAIN]));
    printf("  recording                         %7.0f  (+%.0f)\n", median(pair_ns[HOOKED]), median(beyond[HOOKED]));
    printf("  recording, %u native frames       %7.0f  (+%.0f)\n", kFrames, median(pair_ns[STACK]),
           median(beyond[STACK]));
}

// Wall time says whether threads hinder each other only where there is a core for each; CPU time says it anywhere,
// since whoever waits for a lock of ours spins.
void measure_threads(Driver& driver, OwnRing& ring) {
    printf("%s: with threads, pairs per us of wall time (best of 5 rounds), ns of CPU time per pair (median)\n",
           driver.name);
    printf("  threads      not hooked        recording     with stacks\n");
    for (const u32 count : {1u, 2u, 4u, 8u}) {
        double best[WAYS] = {};
        std::vector<double> cpu[WAYS];
        for (int round = 0; round < 5; ++round)
            for (const Way way : {PLAIN, HOOKED, STACK}) {
                set_way(way, driver);
                const int pairs = driver.pairs / static_cast<int>(count);
                std::vector<std::thread> threads;
                const u64 begin = clock_ns(CLOCK_MONOTONIC), cpu_begin = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
                for (u32 t = 0; t < count; ++t)
                    threads.emplace_back([&, t] { run_deep(kFrames, driver, pairs, t % 2); });
                for (auto& thread : threads) thread.join();
                const double all = pairs * static_cast<double>(count);
                best[way] = std::max(best[way], all * 1000 / static_cast<double>(clock_ns(CLOCK_MONOTONIC) - begin));
                cpu[way].push_back(static_cast<double>(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin) / all);
                ring.empty();
            }
        printf("  %u       ", count);
        for (const Way way : {PLAIN, HOOKED, STACK}) printf("  %6.2f %6.0f", best[way], median(cpu[way]));
        printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string directory = own::make_directory("memscope-bench-hal-");
    memscope_set_session(directory.c_str());
    memscope_configure("ring_mib=64");
    memscope_configure("devices=npu");
    OwnRing ring(directory);
    Driver nothing = {"a driver that does nothing", dlopen(PLAIN_DRIVER, RTLD_NOW | RTLD_LOCAL), 100'000};
    if (nothing.library == nullptr) return 1;
    int status = 0;
    if (argc == 4 && strcmp(argv[1], "pairs") == 0) {
        set_way(strcmp(argv[3], "plain") == 0 ? PLAIN : strcmp(argv[3], "stack") == 0 ? STACK : HOOKED, nothing);
        run_deep(kFrames, nothing, std::atoi(argv[2]), 0);
    } else {
        measure(nothing, ring);
        measure_threads(nothing, ring);
        Driver mapping = nothing;
        mapping.name = "a driver that does nothing, and a page mapped and unmapped per pair";
        mapping.maps = true;
        measure(mapping, ring);
        measure_threads(mapping, ring);
        // Only when the first is gone: hooks lead to the first driver that is loaded.
        dlclose(nothing.library);
        Driver simulated = {"the simulated driver", dlopen(SIMULATED_DRIVER, RTLD_NOW | RTLD_LOCAL), 20'000};
        if (simulated.library == nullptr) return 1;
        measure(simulated, ring);
        measure_threads(simulated, ring);
    }
    memscope_stats stats;
    memscope_get_stats(&stats);
    if (stats.lost != 0) {
        printf("lost %llu events: the figures are void\n", stats.lost);
        status = 1;
    }
    const std::string clean = "rm -rf " + directory;
    return std::system(clean.c_str()) == 0 ? status : 1;
}
