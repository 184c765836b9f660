// What a kernel launch costs beyond the launch itself: the simulator's aclrtLaunchKernel without hooks, with hooks and
// recording off, and recording with task reports and kernel times, turn by turn in one process, 1 and 8 threads (each
// with a device of its own). Time on the processor of the launching threads. The simulated launch is far cheaper than a
// real one, so only the differences mean something; recording pays also for the reports that the simulator then makes.
#include <time.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "../../tests/native/cann/kernels.h"

extern "C" void memscope_remove_hooks();

using namespace kernels;

namespace {

constexpr int kLaunches = 20'000, kRounds = 9;

u64 thread_cpu_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000ull + static_cast<u64>(now.tv_nsec);
}

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

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Makes room in the ring, as the agent does.
void keep_ring_empty(const std::atomic<bool>& done) {
    Ring ring;
    while (!done.load()) {
        if (!ring.is_open()) {
            for (const std::string& path : own::rings()) ring.open(path.c_str(), true);
        } else {
            u64 at = ring.header->acked.load();
            while (at < ring.header->head.load() && ring.peek(at).length != 0) at += ring.peek(at).length;
            ring.release(at);
        }
        usleep(500);
    }
}

}  // namespace

int main() {
    setenv("NPUSIM_DEVICES", "8", 1);
    begin_recording();
    memscope_set_wait_ns(1'000'000'000);
    memscope_stop();
    std::atomic<bool> done{false};
    std::thread reader([&] { keep_ring_empty(done); });
    printf("ns of processor time per launch, median of %d rounds of %d launches per thread\n", kRounds, kLaunches);
    printf("threads  not hooked  hooked, off  recording   (beyond not hooked)  timed\n");
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
        const memscope_kernel_stats after = stats();
        const double timed = 100.0 * static_cast<double>(after.timed - before.timed);
        printf("%7d  %10.1f  %11.1f  %9.1f   (+%.1f, +%.1f)  %.0f %%\n", threads, median(plain), median(off),
               median(on), median(off) - median(plain), median(on) - median(plain),
               timed / static_cast<double>(after.launched - before.launched));
    }
    done = true;
    reader.join();
    memscope_stats ring;
    memscope_get_stats(&ring);
    printf("lost in the ring: %llu\n", ring.lost);
    const std::string clean = "rm -rf " + own::session_directory();
    return std::system(clean.c_str());
}
