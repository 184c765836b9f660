// What a block of torch_npu's caching pool costs: the eight mstx calls of a malloc and a free, in which two records
// are written. Beside it the same calls while nothing is watched, while blocks are remembered, and what a record alone
// costs (a mark of a known text). A reader thread makes room, as the agent does. Medians of one process.
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
#include "source/mstx_abi.h"

extern "C" int InitInjectionMstx(memscope::mstx::GetTable get_table);

using namespace memscope;
using namespace memscope::mstx;

namespace {

constexpr int kPairs = 100'000;
constexpr int kRounds = 15;
constexpr u64 kAlive = 4096;  // blocks that live at a time

// Time on the processor, not on the clock: what else the machine does is not our cost.
u64 thread_cpu_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000ull + static_cast<u64>(now.tv_nsec);
}

// What mstx itself costs is not ours: its tables are here.
Slot g_functions[3][6];
Slot* g_slots[3][6];

int get_table(int module, Slot*** table, unsigned* size) {
    for (int id = 1; id < 6; ++id) g_slots[module - 1][id] = &g_functions[module - 1][id];
    *table = g_slots[module - 1];
    *size = 6;
    return 0;
}

void* domain() { return reinterpret_cast<void* (*)(const char*)>(g_functions[kDomains - 1][1])("ptaCaching"); }

void memory_call(int id, const void* description) {
    reinterpret_cast<void (*)(void*, const void*)>(g_functions[kMemory - 1][id])(domain(), description);
}

void heap(void* ptr) {
    const VirtualRange range = {0, ptr, 1 << 30};
    const HeapDescription description = {0, 0, &range};
    memory_call(1, &description);
}

void allocate(void* ptr) {
    heap(ptr);
    const VirtualRange range = {0, ptr, 512};
    const RegionsRegisterBatch batch = {nullptr, 0, 1, &range, nullptr};
    memory_call(3, &batch);
}

void release(void* ptr) {
    heap(ptr);
    const RegionRef ref = {kByPointer, ptr};
    const RegionsUnregisterBatch batch = {1, &ref};
    memory_call(4, &batch);
}

void* block(u64 i) { return reinterpret_cast<void*>(0x120000000000ull + 512 * (i % (2 * kAlive))); }

double pair_ns() {
    const u64 begin = thread_cpu_ns();
    for (u64 i = 0; i < kPairs; ++i) {
        allocate(block(i + kAlive));
        release(block(i));
    }
    return static_cast<double>(thread_cpu_ns() - begin) / kPairs;
}

double record_ns() {
    const u64 begin = thread_cpu_ns();
    const auto mark = reinterpret_cast<void (*)(const char*, void*)>(g_functions[kCore - 1][1]);
    for (int i = 0; i < 2 * kPairs; ++i) mark("a text", nullptr);
    return static_cast<double>(thread_cpu_ns() - begin) / (2.0 * kPairs);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main() {
    char name[] = "/dev/shm/memscope-pool-bench-XXXXXX";
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
    InitInjectionMstx(get_table);
    std::vector<double> off, remembering, recording, record;
    for (int i = 0; i < kRounds; ++i) off.push_back(pair_ns());
    memscope_remember();
    for (u64 i = 0; i < kAlive; ++i) allocate(block(i));
    for (int i = 0; i < kRounds; ++i) {
        remembering.push_back(pair_ns());
        memscope_start();
        recording.push_back(pair_ns());
        record.push_back(record_ns());
        memscope_stop();
    }
    done = true;
    reader.join();
    memscope_stats stats;
    memscope_get_stats(&stats);
    printf("malloc and free of ptaCaching, %llu blocks alive, median of %d rounds of %d\n",
           static_cast<unsigned long long>(kAlive), kRounds, kPairs);
    printf("  nobody watches       %7.1f ns\n", median(off));
    printf("  remembering          %7.1f ns\n", median(remembering));
    printf("  recording            %7.1f ns   (lost %llu)\n", median(recording), stats.lost);
    printf("  one record (a mark)  %7.1f ns\n", median(record));
    printf("  beyond two records   %7.1f ns\n", median(recording) - 2 * median(record));
    const std::string clean = "rm -rf " + directory;
    return std::system(clean.c_str());
}
