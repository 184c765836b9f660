// What a block of torch_npu's caching pool costs: the eight mstx calls of a malloc and a free, in which two records
// are written. Beside it the same calls while nothing is watched, while blocks are remembered, and what a record alone
// costs (a mark of a known text). A reader thread makes room, as the agent does. Medians of one process.
#include <cstdio>
#include <vector>

#include "../measuring.h"
#include "source/mstx_abi.h"

extern "C" int InitInjectionMstx(memscope::mstx::GetTable get_table);

using namespace memscope;
using namespace measuring;
using namespace memscope::mstx;

namespace {

constexpr int kPairs = 100'000;
constexpr int kRounds = 15;
constexpr u64 kAlive = 4096;  // blocks that live at a time

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

}  // namespace

int main() {
    const EmptiedSession session;
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
    memscope_stats stats;
    memscope_get_stats(&stats);
    printf("malloc and free of ptaCaching, %llu blocks alive, median of %d rounds of %d\n",
           static_cast<unsigned long long>(kAlive), kRounds, kPairs);
    printf("  nobody watches       %7.1f ns\n", median(off));
    printf("  remembering          %7.1f ns\n", median(remembering));
    printf("  recording            %7.1f ns   (lost %llu)\n", median(recording), stats.lost);
    printf("  one record (a mark)  %7.1f ns\n", median(record));
    printf("  beyond two records   %7.1f ns\n", median(recording) - 2 * median(record));
    return 0;
}
