// Blocks of the driver from before recording began, and from while it was off: known at the next start() with their
// true times, and every block's life in the ring begins before it ends.
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cann.h"
#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
}

namespace {

constexpr u8 kShadow = static_cast<u8>(Flag::SHADOW);

void* allocate(u64 size, u64 flag = MEMF_DEV | MEMF_HBM) {
    void* block = nullptr;
    CHECK_EQUAL(halMemAlloc(&block, size, flag), 0);
    return block;
}

u64 address_of(void* block) { return reinterpret_cast<u64>(block); }

}  // namespace

// The cases run in this order: there is one recorder per process.

CASE(before_the_first_start_nothing_is_written) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=64");
    memscope_configure("devices=npu");
    memscope_install_hooks();
    memscope_remember();
    CHECK_EQUAL(halMemFree(allocate(4096)), 0);
    CHECK(rings().empty());
}

CASE(deferred_blocks_are_told_at_start_with_their_true_times) {
    void* freed = allocate(4096);
    const u64 begin = monotonic_ns();
    void* kept = allocate(8192, MEMF_DEV | MEMF_HBM | 1 | 33ull << MEMF_MODULE_SHIFT);
    const u64 end = monotonic_ns();
    std::thread([&] { CHECK_EQUAL(halMemFree(freed), 0); }).join();
    memscope_start();
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), 1u);
    const EventRecord& told = memory[0].record;
    CHECK_EQUAL(told.ptr, address_of(kept));
    CHECK_EQUAL(told.size, 8192);
    CHECK_EQUAL(told.device, 1);
    CHECK_EQUAL(told.attr, MEMF_DEV | MEMF_HBM | 1 | 33ull << MEMF_MODULE_SHIFT);
    CHECK_EQUAL(told.tid, static_cast<u32>(gettid()));
    CHECK_EQUAL(told.header.flags, kShadow);
    CHECK_EQUAL(text_of(told.name), "halMemAlloc");
    CHECK(told.ts >= begin && told.ts <= end);
    // Its bytes count from the first event on.
    void* next = allocate(4096, MEMF_DEV | 1);
    CHECK_EQUAL(own_memory_events().back().record.used, 8192 + 4096);
    CHECK_EQUAL(halMemFree(kept), 0);
    CHECK_EQUAL(own_memory_events().back().record.used, 4096);
    CHECK_EQUAL(own_memory_events().back().record.header.flags, 0);
    CHECK_EQUAL(halMemFree(next), 0);
    CHECK_EQUAL(own_memory_events().back().record.used, 0);
}

CASE(a_recorded_block_that_ends_while_recording_is_off) {
    void* block = allocate(4096);
    memscope_stop();
    const u64 begin = monotonic_ns();
    const auto before = own_memory_events().size();
    CHECK_EQUAL(halMemFree(block), 0);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 1);
    CHECK(memory.back().kind == Kind::FREE);
    CHECK_EQUAL(memory.back().record.header.flags, kShadow);
    CHECK_EQUAL(memory.back().record.size, 4096);
    CHECK(memory.back().record.ts >= begin);
    memscope_start();
    memscope_start();  // a second one says nothing
    CHECK_EQUAL(own_memory_events().size(), before + 1);
}

CASE(a_handle_mapped_before_start_is_tied_to_its_address) {
    memscope_stop();
    const auto before = own_events().size();
    const drv_mem_prop properties = {1, 1, 33, 1, 0, 0};
    void *range = nullptr, *gone = nullptr;
    drv_mem_handle* handle = nullptr;
    CHECK_EQUAL(halMemAddressReserve(&range, 8 << 20, 0, nullptr, 0), 0);
    CHECK_EQUAL(halMemAddressReserve(&gone, 8 << 20, 0, nullptr, 0), 0);
    CHECK_EQUAL(halMemCreate(&handle, 2 << 20, &properties, 0), 0);
    CHECK_EQUAL(halMemMap(range, 2 << 20, 0, handle, 0), 0);
    CHECK_EQUAL(halMemAddressFree(gone), 0);
    CHECK_EQUAL(own_events().size(), before);
    memscope_start();
    std::map<Kind, std::vector<EventRecord>> told;
    std::vector<Kind> order;
    const auto events = own_events();
    for (std::size_t i = before; i < events.size(); ++i) {
        told[events[i].kind].push_back(events[i].record);
        order.push_back(events[i].kind);
    }
    CHECK_EQUAL(told[Kind::RESERVE].size(), 1u);
    CHECK_EQUAL(told[Kind::RESERVE][0].ptr, address_of(range));
    CHECK_EQUAL(told[Kind::MALLOC].size(), 1u);
    CHECK_EQUAL(told[Kind::MAP].size(), 1u);
    CHECK_EQUAL(told[Kind::MAP][0].attr, told[Kind::MALLOC][0].ptr);
    CHECK_EQUAL(told[Kind::MAP][0].header.flags, kShadow);
    CHECK(order[1] == Kind::MALLOC);  // after START_TRACE
    CHECK_EQUAL(halMemUnmap(range), 0);
    CHECK_EQUAL(halMemRelease(handle), 0);
    CHECK_EQUAL(halMemAddressFree(range), 0);
}

// Eight threads allocate and free at random while recording goes on and off. Whatever the moment: in the ring a block
// begins before it ends, ends before its address begins again, and in the end exactly those live that really do.
CASE(start_and_stop_under_eight_threads_lose_and_invent_nothing) {
    constexpr int kThreads = 8, kSlots = 24, kRounds = 60;
    const auto before = own_events().size();
    std::atomic<bool> done{false};
    std::vector<std::vector<void*>> live(kThreads, std::vector<void*>(kSlots, nullptr));
    std::vector<std::thread> threads;
    for (u32 t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            u64 random = t + 1;
            while (!done.load()) {
                random = mix64(random + 0x9E37);
                void*& slot = live[t][random % kSlots];
                if (slot != nullptr) {
                    if (halMemFree(slot) != 0) abort();
                    slot = nullptr;
                } else if (halMemAlloc(&slot, 4096, MEMF_DEV | (random >> 32 & 1)) != 0) {
                    abort();
                }
                if (random % 16 == 0) usleep(50);
            }
        });
    for (int round = 0; round < kRounds; ++round) {
        round % 2 == 0 ? memscope_stop() : memscope_start();
        usleep(static_cast<useconds_t>(500 + mix64(static_cast<u64>(round)) % 1500));
    }
    done = true;
    for (auto& thread : threads) thread.join();
    memscope_start();

    memscope_stats stats;
    memscope_get_stats(&stats);
    CHECK_EQUAL(stats.lost, 0u);
    std::set<u64> known;
    u64 shadows = 0, plain = 0;
    const auto events = own_events();
    for (std::size_t i = before; i < events.size(); ++i) {
        const u64 ptr = events[i].record.ptr;
        if (events[i].kind == Kind::MALLOC) {
            CHECK(known.insert(ptr).second);
            ++((events[i].record.header.flags & kShadow) != 0 ? shadows : plain);
        } else if (events[i].kind == Kind::FREE) {
            CHECK_EQUAL(known.erase(ptr), 1u);
        }
    }
    std::set<u64> really;
    for (const auto& slots : live)
        for (void* block : slots)
            if (block != nullptr) really.insert(address_of(block));
    CHECK(known == really);
    CHECK(shadows > 100);  // else the test has tested nothing
    CHECK(plain > 100);
    for (const auto& slots : live)
        for (void* block : slots)
            if (block != nullptr) CHECK_EQUAL(halMemFree(block), 0);
    CHECK_EQUAL(own_memory_events().back().record.used, 0);
}

CASE(a_child_does_not_inherit_what_was_remembered) {
    memscope_stop();
    void* block = allocate(4096);
    const pid_t child = fork();
    if (child == 0) {
        memscope_start();
        void* own = nullptr;
        _exit(halMemAlloc(&own, 4096, MEMF_DEV));
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), 1u);
    CHECK_EQUAL(memory[0].record.header.flags, 0);
    CHECK_EQUAL(memory[0].record.used, 4096);
    memscope_start();
    CHECK_EQUAL(own_memory_events().back().record.ptr, address_of(block));
    CHECK_EQUAL(own_memory_events().back().record.header.flags, kShadow);
    CHECK_EQUAL(halMemFree(block), 0);
}

int main(int argc, char** argv) {
    alarm(240);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
