// What one memory event costs beyond the hooked call: pairs of MALLOC and FREE through libraries that stand for
// torch's, without hooks, with hooks and recording off, and recording. A reader thread makes room, as the agent
// does. Prints the median of rounds; figures of one process, so ratios hold on a noisy machine.
#include <cstdio>
#include <vector>

#include "measuring.h"

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
void early_allocate(void* ptr, std::size_t bytes);
void early_release(void* ptr);
}

using namespace memscope;
using namespace measuring;

namespace {

constexpr int kPairs = 200'000;
constexpr int kRounds = 15;

double round_ns_per_event() {
    const u64 begin = thread_cpu_ns();
    for (int i = 0; i < kPairs; ++i) {
        void* const block = reinterpret_cast<void*>(0x1000 + 64ull * static_cast<u64>(i % 1000));
        early_allocate(block, 512);
        early_release(block);
    }
    return static_cast<double>(thread_cpu_ns() - begin) / (2.0 * kPairs);
}

}  // namespace

int main() {
    const EmptiedSession session;
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
    memscope_stats stats;
    memscope_get_stats(&stats);
    printf("per event, median of %d rounds of %d pairs\n", kRounds, kPairs);
    printf("  not hooked          %7.1f ns\n", median(plain));
    printf("  hooked, off         %7.1f ns\n", median(off));
    printf("  recording           %7.1f ns   (+%.1f ns, lost %llu)\n", median(on), median(on) - median(plain),
           stats.lost);
    return 0;
}
