// What a kernel launch costs beyond the launch itself: the simulator's aclrtLaunchKernel without hooks, with hooks and
// recording off, and recording with task reports and kernel times, turn by turn in one process, 1 and 8 threads (each
// with a device of its own). Time on the processor of the launching threads. The simulated launch is far cheaper than a
// real one, so only the differences mean something; recording pays also for the reports that the simulator then makes.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "../../tests/native/cann/kernels.h"
#include "../measuring.h"

extern "C" void memscope_remove_hooks();

using namespace kernels;
using namespace measuring;

namespace {

constexpr int kLaunches = 20'000, kRounds = 9;

double round_ns_per_launch(int thread_count) {
    std::atomic<u64> total{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < thread_count; ++t)
        threads.emplace_back([&, t] {
            rtSetDevice(t);
            SimKernel kernel = {SIM_KERNEL_MAGIC, "aclnnMatmul_MatMulV3Common_MatMulV3", nullptr, nullptr};
            const u64 begin = thread_cpu_ns();
            for (int i = 0; i < kLaunches; ++i) aclrtLaunchKernel(&kernel, 1, nullptr, 0, nullptr);
            total += thread_cpu_ns() - begin;
        });
    for (auto& thread : threads) thread.join();
    return static_cast<double>(total.load()) / (static_cast<double>(kLaunches) * thread_count);
}

// The reader has caught up when nothing more comes.
void wait_until_read() {
    for (u64 seen = 0, now = stats().timed + stats().foreign; now != seen; now = stats().timed + stats().foreign) {
        seen = now;
        usleep(100'000);
    }
}

}  // namespace

int main() {
    setenv("NPUSIM_DEVICES", "8", 1);
    const EmptiedSession session;
    memscope_configure("ring_mib=16");
    memscope_configure("devices=npu");
    memscope_configure("sorts=2");
    memscope_install_hooks();
    printf("ns of processor time per launch, median of %d rounds of %d launches per thread\n", kRounds, kLaunches);
    printf("threads  not hooked  hooked, off  recording   (beyond not hooked)  timed  given up\n");
    for (const int threads : {1, 8}) {
        std::vector<double> plain, off, on;
        const memscope_kernel_stats before = stats();
        for (int i = 0; i < kRounds; ++i) {
            memscope_remove_hooks();
            plain.push_back(round_ns_per_launch(threads));
            memscope_install_hooks();
            off.push_back(round_ns_per_launch(threads));
            memscope_start();
            on.push_back(round_ns_per_launch(threads));
            memscope_stop();
        }
        wait_until_read();
        const memscope_kernel_stats after = stats();
        const double launched = static_cast<double>(after.launched - before.launched);
        printf("%7d  %10.1f  %11.1f  %9.1f   (+%.1f, +%.1f)  %.1f %%  %.1f %%\n", threads, median(plain), median(off),
               median(on), median(off) - median(plain), median(on) - median(plain),
               100.0 * static_cast<double>(after.timed - before.timed) / launched,
               100.0 * static_cast<double>(after.forgotten - before.forgotten) / launched);
    }
    memscope_stats ring;
    memscope_get_stats(&ring);
    printf("lost in the ring: %llu\n", ring.lost);
    return 0;
}
