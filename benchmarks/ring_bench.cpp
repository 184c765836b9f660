// How fast records go through the ring: one thread, two threads, and with a reader beside them.
//
// Each figure is the median of kRounds runs. Without a reader the ring is emptied between the bursts and only the
// bursts are timed; that is what a rank pays as long as the agent keeps up. Time is read once per burst. The first
// line is the baseline: copying the same 96 bytes into the same memory with no protocol at all.
#include <sys/mman.h>
#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>
#include "measuring.h"
#include "record/ring.h"
#include "ring_fixture.h"

using namespace memscope;
using measuring::median;

namespace {

constexpr u32 kRounds = 7;
constexpr u64 kBytes = kDefaultRingBytes;
constexpr u64 kBurst = kBytes / sizeof(EventRecord) / 2;
constexpr u32 kBursts = 20;

struct Setup {
    Scratch scratch;
    Ring ring;

    Setup() {
        const int error = create_ring(ring, scratch.file("bench.ring"), kBytes);
        if (error != 0) {
            fprintf(stderr, "cannot make a ring: %s\n", strerror(error));
            exit(1);
        }
        memset(ring.data, 0, 2 * ring.capacity());  // every page mapped, so that faults are not measured
    }
    ~Setup() { ring.unmap(); }
};

void write_burst(Ring& ring, u32 thread, u64 count) {
    for (u64 number = 0; number < count; ++number) write_event(ring, Kind::MALLOC, thread, number);
}

double copy_without_protocol() {
    Setup setup;
    const u64 mask = setup.ring.capacity() - 1;
    u64 spent = 0;
    u64 at = 0;
    EventRecord event = {};
    for (u32 burst = 0; burst < kBursts; ++burst) {
        const u64 begin = monotonic_ns();
        for (u64 number = 0; number < kBurst; ++number, at += sizeof event) {
            event.ptr = number;
            memcpy(setup.ring.data + (at & mask), static_cast<void*>(&event), sizeof event);
            asm volatile("" ::: "memory");
        }
        spent += monotonic_ns() - begin;
    }
    return static_cast<double>(spent) / static_cast<double>(kBurst * kBursts);
}

double bursts_of(u32 threads) {
    Setup setup;
    u64 spent = 0;
    for (u32 burst = 0; burst < kBursts; ++burst) {
        std::atomic<bool> go{false};
        std::vector<std::thread> others;
        const u64 each = kBurst / threads;
        for (u32 thread = 1; thread < threads; ++thread)
            others.emplace_back([&, thread] {
                while (!go.load(std::memory_order_acquire)) {
                }
                write_burst(setup.ring, thread, each);
            });
        const u64 begin = monotonic_ns();
        go.store(true, std::memory_order_release);
        write_burst(setup.ring, 0, each);
        for (auto& other : others) other.join();
        spent += monotonic_ns() - begin;
        setup.ring.release(setup.ring.header->head.load());
    }
    return static_cast<double>(spent) / static_cast<double>(kBurst * kBursts);
}

// The reader follows each record and gives the space back in batches, as the agent does; it does nothing with them.
double with_reader(u64& lost, u32& waits) {
    Setup setup;
    setup.ring.wait_ns = 10'000'000'000;
    std::atomic<bool> stop{false};
    std::thread agent([&] {
        Reader reader(setup.ring);
        u64 sum = 0;
        while (!stop.load(std::memory_order_relaxed)) {
            if (reader.read([&](const RecordHeader& record, char*) { sum += record.kind; }) == 0) sched_yield();
            if (reader.at - setup.ring.header->acked.load(std::memory_order_relaxed) >= kBytes / 32) reader.release();
        }
        asm volatile("" ::"r"(sum));
    });
    const u64 count = kBurst * kBursts;
    const u64 begin = monotonic_ns();
    write_burst(setup.ring, 0, count);
    const u64 spent = monotonic_ns() - begin;
    stop = true;
    agent.join();
    lost = setup.ring.header->lost[static_cast<u8>(Kind::MALLOC)].load();
    waits = setup.ring.header->waits.load();
    return static_cast<double>(spent) / static_cast<double>(count);
}

double dropping() {
    Setup setup;
    setup.ring.wait_ns = 0;
    while (write_event(setup.ring, Kind::MALLOC, 0, 0)) {
    }
    const u64 count = 2'000'000;
    const u64 begin = monotonic_ns();
    write_burst(setup.ring, 0, count);
    return static_cast<double>(monotonic_ns() - begin) / static_cast<double>(count);
}

double create_ms() {
    Scratch scratch;
    Ring ring;
    const u64 begin = monotonic_ns();
    if (create_ring(ring, scratch.file("bench.ring"), kBytes) != 0) exit(1);
    const u64 spent = monotonic_ns() - begin;
    ring.unmap();
    return static_cast<double>(spent) / 1e6;
}

// What the first lap through the ring costs more than the others: one page fault in 42 records.
double first_lap() {
    Scratch scratch;
    Ring ring;
    if (create_ring(ring, scratch.file("bench.ring"), kBytes) != 0) exit(1);
    const u64 count = kBytes / sizeof(EventRecord);
    const u64 begin = monotonic_ns();
    write_burst(ring, 0, count);
    const u64 spent = monotonic_ns() - begin;
    ring.unmap();
    return static_cast<double>(spent) / static_cast<double>(count);
}

template <typename Measure>
double rounds(Measure measure) {
    std::vector<double> values;
    for (u32 round = 0; round < kRounds; ++round) values.push_back(measure());
    return median(values);
}

void print(const char* what, double nanoseconds, double baseline) {
    printf("%-34s %8.1f ns/record %7.1f M records/s %6.2fx\n", what, nanoseconds, 1e3 / nanoseconds,
           nanoseconds / baseline);
}

}  // namespace

int main() {
    const double baseline = rounds(copy_without_protocol);
    print("copy 96 bytes, no protocol", baseline, baseline);
    print("one thread", rounds([] { return bursts_of(1); }), baseline);
    print("two threads", rounds([] { return bursts_of(2); }), baseline);
    u64 lost = 0;
    u32 waits = 0;
    print("one thread, a reader beside it", rounds([&] { return with_reader(lost, waits); }), baseline);
    printf("%-34s %llu lost, %u waits in the last round\n", "", static_cast<unsigned long long>(lost), waits);
    print("one thread, first lap", rounds(first_lap), baseline);
    print("dropping (reader dead)", rounds(dropping), baseline);
    printf("%-34s %8.2f ms\n", "making a ring of 16 MiB", rounds(create_ms));
    return 0;
}
