// A stand-in for a watched process: makes a ring and writes events whose truth is known beforehand.
//
// usage: ring_writer PATH RING_ID [key=value ...]
//   rank=0 world=1 parent=0 attempt=0   identity
//   events=100000   how many; event i has attr = i, and is the MALLOC (i even) or FREE (i odd) of block i / 2
//   rate=0          events per second over all threads, 0: as fast as the ring takes them
//   threads=1       thread t writes the events i with i % threads == t, and says so in tid
//   bytes=1048576   capacity of the ring
//   wait_ms=20      what a full ring costs, once; a large value makes the writer lossless
//   strings=3       definitions written first: strings "text-<i>", one frame each, and one stack of them all
//   churn=0         1: realistic sizes, addresses and counters (for benchmarks) instead of i
//   hole_every=0    every k-th event is reserved and never committed
//   step_every=0    a step begins every k events
//   leak=0          bytes of a block that is kept in each step
//   host=testhost   of the identity
//   crash_at=-1     SIGKILL of itself before that event
//   close=1         says goodbye at the end
//   link=           a second name for the file, kept when the agent removes the first
//   linger_ms=0     lives on that long after the last event
//
// Prints "committed <n>" when it ends by itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "record/ring.h"

using namespace memscope;

namespace {

std::map<std::string, long long> options = {
    {"rank", 0},       {"world", 1},       {"parent", 0},   {"attempt", 0},   {"events", 100000}, {"rate", 0},
    {"threads", 1},    {"bytes", 1048576}, {"wait_ms", 20}, {"strings", 3},   {"churn", 0},       {"hole_every", 0},
    {"step_every", 0}, {"crash_at", -1},   {"close", 1},    {"linger_ms", 0}, {"leak", 0}};

u64 start_of_this_process() {
    std::ifstream file("/proc/self/stat");
    std::string line, word;
    std::getline(file, line);
    line = line.substr(line.rfind(')') + 2);
    std::size_t at = 0;
    for (int field = 3; field < 22; ++field) at = line.find(' ', at) + 1;
    return std::strtoull(line.c_str() + at, nullptr, 10);
}

void put(Ring& ring, const void* record, u32 length, Kind kind, bool commit = true) {
    char* place = ring.reserve(length, static_cast<u8>(kind));
    if (place == nullptr) return;
    std::memcpy(place + 8, static_cast<const char*>(record) + 8, length - 8);
    if (commit) Ring::commit(place, length, static_cast<u8>(kind), 0);
}

void define(Ring& ring) {
    std::vector<u64> frames;
    for (long long i = 0; i < options["strings"]; ++i) {
        const std::string text = "text-" + std::to_string(i);
        alignas(8) char space[sizeof(StringRecord) + 64] = {};
        StringRecord string = {};
        string.id = text_id(text.data(), text.size());
        string.bytes = static_cast<u32>(text.size());
        std::memcpy(space, &string, sizeof string);
        std::memcpy(space + sizeof string, text.data(), text.size());
        put(ring, space, static_cast<u32>((sizeof string + text.size() + 7) / 8 * 8), Kind::STRING);
        FrameRecord frame = {};
        frame.id = nonzero(combine64(2, string.id));
        frame.file = frame.function = string.id;
        frame.line = static_cast<u32>(i + 1);
        put(ring, &frame, sizeof frame, Kind::FRAME);
        frames.push_back(frame.id);
    }
    if (frames.empty()) return;
    std::vector<u64> space(3 + frames.size());
    StackRecord stack = {};
    stack.id = 77;
    stack.count = static_cast<u32>(frames.size());
    std::memcpy(space.data(), &stack, sizeof stack);
    std::memcpy(space.data() + 3, frames.data(), frames.size() * 8);
    put(ring, space.data(), static_cast<u32>(space.size() * 8), Kind::STACK);
}

// An allocator as training makes it: size classes, addresses from free lists, mostly last in, first out.
struct Churn {
    u64 state = 12345, next = 0x7f3200000000ull;
    i64 used = 0;
    std::map<i64, std::vector<u64>> free_blocks;
    std::vector<std::pair<u64, i64>> live;

    double random() {
        state = mix64(state + 0x9E3779B97F4A7C15ull);
        return static_cast<double>(state >> 11) * 0x1p-53;
    }
    Kind act(EventRecord& event) {
        const double r = random();
        const bool allocate = live.size() < 50 || (random() < 0.5 && live.size() < 4000);
        if (allocate) {
            const i64 size = static_cast<i64>((512ull << static_cast<int>(r * r * 14)) * (8 + state % 8) / 8);
            auto& blocks = free_blocks[size];
            u64 ptr = next;
            if (blocks.empty())
                next += static_cast<u64>(size) + 64;
            else
                ptr = blocks.back(), blocks.pop_back();
            live.emplace_back(ptr, size);
            used += size;
            event.ptr = ptr, event.size = size;
        } else {
            const auto back = static_cast<std::size_t>(r * r * r * r * r * r * static_cast<double>(live.size()));
            const auto at = live.size() - 1 - (back < live.size() ? back : live.size() - 1);
            event.ptr = live[at].first, event.size = live[at].second;
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
            free_blocks[event.size].push_back(event.ptr);
            used -= event.size;
        }
        event.used = used;
        event.total = (used + (2 << 20) - 1) / (2 << 20) * (2 << 20);
        return allocate ? Kind::MALLOC : Kind::FREE;
    }
};

void write_events(Ring& ring, long long thread) {
    const long long threads = options["threads"], rate = options["rate"], hole = options["hole_every"];
    const u64 begun = monotonic_ns();
    Churn churn;
    for (long long i = thread; i < options["events"]; i += threads) {
        if (i == options["crash_at"]) kill(getpid(), SIGKILL);
        if (rate != 0 && i % 64 < threads) {
            const u64 due = begun + static_cast<u64>(i) * 1'000'000'000ull / static_cast<u64>(rate);
            const timespec until = {static_cast<time_t>(due / 1'000'000'000), static_cast<long>(due % 1'000'000'000)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
        }
        EventRecord event = {};
        event.ts = monotonic_ns();
        if (options["step_every"] != 0 && i % options["step_every"] == 0) {
            const u32 step = ring.header->step.fetch_add(1) + 1;
            event.step = step, event.attr = step, event.used = event.total = kUnknown, event.device = kNoDevice;
            event.stack_py = 77;
            put(ring, &event, sizeof event, Kind::STEP);
            event.stack_py = 0;
        }
        Kind kind = i % 2 == 0 ? Kind::MALLOC : Kind::FREE;
        event.ptr = 0x1000 + static_cast<u64>(i / 2) * 64;
        event.size = 64;
        event.used = i % 2 == 0 ? 64 : 0;
        event.total = 4096;
        if (options["churn"] != 0)
            kind = churn.act(event);
        else
            event.attr = static_cast<u64>(i), event.stack_py = options["strings"] != 0 ? 77 : 0;
        if (options["leak"] != 0 && i % options["step_every"] == 1) {
            kind = Kind::MALLOC;
            event.ptr = 0x900000000000 + static_cast<u64>(i) * 65536;
            event.size = options["leak"];
        }
        event.tid = static_cast<u32>(getpid() + thread);
        event.step = ring.header->step.load();
        event.device_type = static_cast<u8>(DeviceType::CPU);
        event.pool = static_cast<u8>(Pool::HOST);
        put(ring, &event, sizeof event, kind, hole == 0 || i % hole != hole - 1);
    }
}

}  // namespace

int main(int count, char** words) {
    if (count < 3) return 2;
    std::string second_name, host = "testhost";
    for (int i = 3; i < count; ++i) {
        const char* equals = std::strchr(words[i], '=');
        if (equals == nullptr) return 2;
        if (std::strncmp(words[i], "link=", 5) == 0) {
            second_name = equals + 1;
            continue;
        }
        if (std::strncmp(words[i], "host=", 5) == 0) {
            host = equals + 1;
            continue;
        }
        options[std::string(words[i], static_cast<std::size_t>(equals - words[i]))] = std::atoll(equals + 1);
    }
    Ring ring;
    if (const int error = ring.create(words[1], static_cast<u64>(options["bytes"])); error != 0) {
        std::fprintf(stderr, "ring_writer: %s: %s\n", words[1], std::strerror(error));
        return 1;
    }
    RingHeader& header = *ring.header;
    header.ring_id = std::strtoull(words[2], nullptr, 16);
    header.parent_ring_id = static_cast<u64>(options["parent"]);
    header.pid = static_cast<u32>(getpid());
    header.ppid = static_cast<u32>(getppid());
    header.process_start = start_of_this_process();
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0) header.pid_namespace = ns.st_ino;
    header.created_ns = monotonic_ns();
    timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    header.wall_offset_ns =
        static_cast<i64>(wall.tv_sec) * 1'000'000'000 + wall.tv_nsec - static_cast<i64>(monotonic_ns());
    header.rank = header.local_rank = static_cast<i32>(options["rank"]);
    header.world_size = static_cast<i32>(options["world"]);
    header.group_rank = 0;
    header.attempt = static_cast<u32>(options["attempt"]);
    std::strcpy(header.role, "trainer");
    std::strncpy(header.host, host.c_str(), sizeof header.host - 1);
    std::strcpy(header.program, words[0]);
    if (!second_name.empty() && link((std::string(words[1]) + "~").c_str(), second_name.c_str()) != 0) return 1;
    if (Ring::publish(words[1]) != 0) return 1;
    ring.wait_ns = static_cast<u64>(options["wait_ms"]) * 1'000'000;

    define(ring);
    std::vector<std::thread> threads;
    for (long long thread = 1; thread < options["threads"]; ++thread)
        threads.emplace_back(write_events, std::ref(ring), thread);
    write_events(ring, 0);
    for (auto& thread : threads) thread.join();
    u64 lost = 0;
    for (const auto& kind : header.lost) lost += kind.load();
    std::printf("committed %lld\n", options["events"] - static_cast<long long>(lost));
    std::fflush(stdout);
    if (options["linger_ms"] != 0) usleep(static_cast<useconds_t>(options["linger_ms"] * 1000));
    if (options["close"] != 0) header.closed.store(1);
    return 0;
}
