// Many threads on many devices, and death at any moment: what the calls did is what the ring says.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
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

constexpr u32 kDevices = 8;
constexpr u32 kThreads = 8;

struct Totals {
    u64 mallocs = 0, frees = 0;
    i64 allocated = 0, released = 0;
    bool operator==(const Totals& other) const {
        return mallocs == other.mallocs && frees == other.frees && allocated == other.allocated &&
               released == other.released;
    }
};

}  // namespace

// The cases run in this order: there is one recorder per process.

CASE(eight_threads_on_eight_devices_add_up) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=64");
    memscope_configure("devices=npu");
    memscope_install_hooks();
    memscope_start();
    constexpr int kActions = 6000, kSlots = 32;
    Totals expected[kDevices];
    std::vector<std::vector<Totals>> by_thread(kThreads, std::vector<Totals>(kDevices));
    std::vector<std::thread> threads;
    for (u32 t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            struct Slot {
                void* block = nullptr;
                i64 size = 0;
                u32 device = 0;
            };
            std::vector<Slot> slots(kSlots);
            u64 random = t + 77;
            for (int i = 0; i < kActions; ++i) {
                random = mix64(random + 0x9E37);
                Slot& slot = slots[random % kSlots];
                if (slot.block == nullptr) {
                    slot.device = static_cast<u32>(random >> 16) % kDevices;
                    slot.size = 4096 * static_cast<i64>(1 + (random >> 24) % 50);
                    if (halMemAlloc(&slot.block, static_cast<u64>(slot.size), MEMF_DEV | slot.device) != 0) abort();
                    ++by_thread[t][slot.device].mallocs;
                    by_thread[t][slot.device].allocated += slot.size;
                } else {
                    if (halMemFree(slot.block) != 0) abort();
                    slot.block = nullptr;
                    ++by_thread[t][slot.device].frees;
                    by_thread[t][slot.device].released += slot.size;
                }
            }
        });
    for (auto& thread : threads) thread.join();
    for (const auto& one : by_thread)
        for (u32 device = 0; device < kDevices; ++device) {
            expected[device].mallocs += one[device].mallocs;
            expected[device].frees += one[device].frees;
            expected[device].allocated += one[device].allocated;
            expected[device].released += one[device].released;
        }

    Totals seen[kDevices];
    std::map<u64, i64> live;
    for (const Seen& one : own_memory_events()) {
        CHECK(one.record.device >= 0 && one.record.device < static_cast<i16>(kDevices));
        Totals& totals = seen[one.record.device];
        if (one.kind == Kind::MALLOC) {
            ++totals.mallocs;
            totals.allocated += one.record.size;
            CHECK(live.emplace(one.record.ptr, one.record.size).second);
        } else {
            ++totals.frees;
            totals.released += one.record.size;
            CHECK_EQUAL(live.at(one.record.ptr), one.record.size);
            live.erase(one.record.ptr);
        }
    }
    for (u32 device = 0; device < kDevices; ++device) {
        CHECK(seen[device] == expected[device]);
        // The next event's live bytes are those of the driver.
        void* block = nullptr;
        CHECK_EQUAL(halMemAlloc(&block, 4096, MEMF_DEV | device), 0);
        u64 used = 0, total = 0;
        npusim_hbm_info(device, &used, &total);
        CHECK_EQUAL(static_cast<u64>(own_memory_events().back().record.used), used);
        CHECK_EQUAL(static_cast<i64>(used), seen[device].allocated - seen[device].released + 4096);
        CHECK_EQUAL(halMemFree(block), 0);
    }
}

// Each thread of the child notes in shared memory how many calls have returned; sizes count up, so the ring must hold
// the sizes 1 to that number, of this thread, in order.
CASE(sigkill_at_any_moment_leaves_every_event_whose_call_had_returned) {
    constexpr u32 kKilled = 50, kWorkers = 3;
    auto* returned =
        static_cast<std::atomic<u64>*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    auto* tids = returned + 64;
    memscope_configure("ring_mib=8");
    u64 checked = 0;
    for (u32 round = 0; round < kKilled; ++round) {
        for (u32 i = 0; i < 128; ++i) returned[i] = 0;
        const pid_t child = fork();
        if (child == 0) {
            const auto work = [&](u32 worker) {
                tids[worker] = static_cast<u64>(gettid());
                for (u64 count = 1; count < 10'000; ++count) {
                    void* block = nullptr;
                    if (halMemAlloc(&block, count, MEMF_DEV | worker) != 0) _exit(1);
                    returned[2 * worker].store(count);
                    if (halMemFree(block) != 0) _exit(1);
                    returned[2 * worker + 1].store(count);
                }
                for (;;) pause();
            };
            std::thread second(work, 1), third(work, 2);
            work(0);
        }
        while (returned[0].load() == 0) usleep(100);
        usleep(static_cast<useconds_t>(mix64(round) % 15'000));
        kill(child, SIGKILL);
        int status = 0;
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        std::map<u64, std::vector<u64>> mallocs, frees;  // by thread
        for (const std::string& path : rings()) {
            Ring ring;
            CHECK_EQUAL(ring.open(path.c_str(), true), 0);
            if (ring.header->pid == static_cast<u32>(child)) {
                CHECK_EQUAL(ring.header->lost[static_cast<std::size_t>(Kind::MALLOC)].load(), 0u);
                // A record that was being written when death came is a hole, and others may follow it.
                for (u64 at = 0; at < ring.header->head.load();) {
                    const RecordHeader header = ring.peek(at);
                    if (!is_valid(header)) {
                        at = ring.next_committed(at + 8);
                        continue;
                    }
                    EventRecord record = {};
                    if (header.length == sizeof record)
                        memcpy(&record, ring.data + (at & (ring.capacity() - 1)), sizeof record);
                    if (header.kind == static_cast<u8>(Kind::MALLOC))
                        mallocs[record.tid].push_back(static_cast<u64>(record.size));
                    if (header.kind == static_cast<u8>(Kind::FREE))
                        frees[record.tid].push_back(static_cast<u64>(record.size));
                    at += header.length;
                }
                ring.unmap();
                unlink(path.c_str());
                continue;
            }
            ring.unmap();
        }
        for (u32 worker = 0; worker < kWorkers; ++worker) {
            const auto& own_mallocs = mallocs[tids[worker].load()];
            const auto& own_frees = frees[tids[worker].load()];
            CHECK(own_mallocs.size() >= returned[2 * worker].load());
            CHECK(own_frees.size() >= returned[2 * worker + 1].load());
            for (u64 i = 0; i < own_mallocs.size(); ++i) CHECK_EQUAL(own_mallocs[i], i + 1);
            for (u64 i = 0; i < own_frees.size(); ++i) CHECK_EQUAL(own_frees[i], i + 1);
            checked += own_mallocs.size();
        }
    }
    CHECK(checked > 1000);
    munmap(returned, 4096);
}

int main(int argc, char** argv) {
    setenv("NPUSIM_DEVICES", "8", 1);
    alarm(240);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
