// The ring against its specification (native/record/ring.h), one promise per case.
#include "record/ring.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <map>
#include <random>
#include <thread>
#include <vector>
#include "check.h"
#include "ring_fixture.h"

using namespace memscope;

// Stands in for the C library's: what the next calls return, before it does its work. tmpfs of kernels before 5.19
// returns EINTR at any signal, and a full file system ENOSPC in the middle; neither can be had at will.
static int allocation_errors[8];
static u32 allocations = 0;

extern "C" int posix_fallocate(int fd, off_t from, off_t length) {
    const u32 call = allocations++;
    if (call < 8 && allocation_errors[call] != 0) return allocation_errors[call];
    return fallocate(fd, 0, from, length) == 0 ? 0 : errno;
}

// What asking for memory returns instead of asking, or 0.
static int populate_error = 0;

extern "C" int madvise(void* place, std::size_t bytes, int advice) noexcept {
    constexpr int kPopulateWrite = 23;
    if (advice == kPopulateWrite && populate_error != 0) {
        errno = populate_error;
        return -1;
    }
    return static_cast<int>(syscall(SYS_madvise, place, bytes, advice));
}

namespace {

struct AllocationErrors {
    AllocationErrors(std::initializer_list<int> errors) {
        std::copy(errors.begin(), errors.end(), allocation_errors);
        allocations = 0;
    }
    ~AllocationErrors() { std::fill(std::begin(allocation_errors), std::end(allocation_errors), 0); }
};

constexpr u64 kSmall = 65536;

u64 sum(const std::atomic<u64> (&counters)[kKindSlots]) {
    u64 total = 0;
    for (const auto& counter : counters) total += counter.load();
    return total;
}

// Bytes of memory that a file takes.
u64 taken(const std::string& path) {
    struct stat info;
    CHECK_EQUAL(stat(path.c_str(), &info), 0);
    return static_cast<u64>(info.st_blocks) * 512;
}

void overwrite(const std::string& path, u64 offset, const void* bytes, std::size_t count) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    CHECK(pwrite(fd, bytes, count, static_cast<off_t>(offset)) == static_cast<ssize_t>(count));
    close(fd);
}

// Memory that parent and child both see, zeroed.
template <typename T>
T* shared_memory() {
    void* place = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    return static_cast<T*>(place);
}

// qemu-user takes any advice about memory and does nothing: neither holes nor MADV_DONTFORK can be tried there.
bool memory_is_emulated() {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    const bool emulated = ring.header->grows == 0;
    ring.unmap();
    if (emulated) fprintf(stderr, "skipped: advice about memory is not followed here\n");
    return emulated;
}

void nap(long nanoseconds) {
    const timespec time = {0, nanoseconds};
    nanosleep(&time, nullptr);
}

}  // namespace

// --- the file --------------------------------------------------------------------------------------------------

CASE(what_is_created_can_be_opened) {
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring writer, reader;
    CHECK_EQUAL(writer.create(path.c_str(), 100'000), 0);
    CHECK_EQUAL(reader.open(path.c_str(), true), ENOENT);  // not published yet
    writer.header->ring_id = 77;
    writer.header->rank = 3;
    CHECK_EQUAL(Ring::publish(path.c_str()), 0);
    CHECK_EQUAL(reader.open(path.c_str(), true), 0);
    CHECK_EQUAL(reader.header->ring_id, 77u);
    CHECK_EQUAL(reader.header->rank, 3);
    CHECK_EQUAL(reader.header->world_size, -1);
    CHECK_EQUAL(reader.capacity(), 131072u);
    struct stat info;
    CHECK_EQUAL(stat(path.c_str(), &info), 0);
    CHECK_EQUAL(info.st_mode & 07777u, 0600u);
    // What writers may use is reserved, not sparse: a write must never find the file system full. The rest is not.
    CHECK_EQUAL(writer.header->limit.load(), kGrowthBytes);
    CHECK_EQUAL(taken(path), kRingHeaderBytes + (writer.header->grows != 0 ? kGrowthBytes : writer.capacity()));
    write_event(writer, Kind::MALLOC, 1, 5);
    Reader follow(reader);
    CHECK_EQUAL(follow.read([](const RecordHeader&, char* place) {
        CHECK(is_event_of(*reinterpret_cast<EventRecord*>(place), 1, 5));
    }),
                1u);
    writer.unmap();
    reader.unmap();
    CHECK(!writer.is_open());
}

CASE(a_ring_that_cannot_be_made_says_why) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(ring.create(scratch.file("no/such/folder").c_str(), kSmall), ENOENT);
    CHECK_EQUAL(ring.create(std::string(600, 'x').c_str(), kSmall), ENAMETOOLONG);
    CHECK_EQUAL(ring.create(scratch.file("huge").c_str(), ~0ull), EINVAL);
    const std::string path = scratch.file("a.ring");
    CHECK_EQUAL(ring.create(path.c_str(), kSmall), 0);
    Ring second;
    CHECK_EQUAL(second.create(path.c_str(), kSmall), EEXIST);
    ring.unmap();
}

CASE(a_file_system_that_is_too_small_is_ENOSPC_and_nothing_is_left) {
    Scratch scratch;
    Ring ring;
    const std::string path = scratch.file("a.ring");
    // It must not take what there is to find that out; the stand-in sees to it that a failure here does not either.
    {
        const AllocationErrors errors{ENOSPC};
        CHECK_EQUAL(ring.create(path.c_str(), 1ull << 40), ENOSPC);
        CHECK_EQUAL(allocations, 0u);
    }
    CHECK_EQUAL(access((path + "~").c_str(), F_OK), -1);
    // Somebody else took the rest meanwhile.
    const AllocationErrors errors{ENOSPC};
    CHECK_EQUAL(ring.create(path.c_str(), 4 << 20), ENOSPC);
    CHECK(!ring.is_open());
    CHECK_EQUAL(access((path + "~").c_str(), F_OK), -1);
}

CASE(a_file_size_limit_is_an_error_and_not_a_signal) {
    Scratch scratch;
    rlimit before;
    CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit low = before;
    low.rlim_cur = 100'000;
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &low), 0);
    Ring ring;
    const int error = ring.create(scratch.file("a.ring").c_str(), 1 << 20);
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_EQUAL(error, EFBIG);
}

CASE(a_signal_does_not_keep_a_ring_from_being_made) {
    Scratch scratch;
    Ring ring;
    const AllocationErrors errors{EINTR, EINTR, EINTR};
    CHECK_EQUAL(ring.create(scratch.file("a.ring").c_str(), 2 << 20), 0);
    CHECK(allocations >= 4u);
    ring.unmap();
}

CASE(what_is_no_ring_is_refused) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(ring.open(scratch.file("nothing").c_str(), true), ENOENT);
    CHECK_EQUAL(ring.open(scratch.file("").c_str(), false), EPROTO);  // a folder
    const std::string fifo = scratch.file("fifo.ring");
    CHECK_EQUAL(mkfifo(fifo.c_str(), 0600), 0);
    CHECK_EQUAL(ring.open(fifo.c_str(), false), EPROTO);  // and does not wait for a writer
    const std::string path = scratch.file("a.ring");
    CHECK_EQUAL(create_ring(ring, path, kSmall), 0);
    ring.unmap();
    const std::string link = scratch.file("link.ring");
    CHECK_EQUAL(symlink(path.c_str(), link.c_str()), 0);
    CHECK_EQUAL(ring.open(link.c_str(), true), ELOOP);
    CHECK_EQUAL(truncate(path.c_str(), 8192), 0);
    CHECK_EQUAL(ring.open(path.c_str(), true), EINVAL);
    CHECK_EQUAL(truncate(path.c_str(), 100), 0);
    CHECK_EQUAL(ring.open(path.c_str(), true), EPROTO);
    CHECK_EQUAL(truncate(path.c_str(), 0), 0);
    CHECK_EQUAL(ring.open(path.c_str(), true), EPROTO);
    CHECK(!ring.is_open());
}

CASE(a_header_that_is_wrong_is_refused) {
    const struct {
        u64 offset;
        u64 value;
        u32 bytes;
        int error;
    } damages[] = {
        {offsetof(RingHeader, magic), 0, 8, EPROTO},
        {offsetof(RingHeader, version), 1, 4, EPROTO},
        {offsetof(RingHeader, header_bytes), 0, 4, EINVAL},
        {offsetof(RingHeader, header_bytes), 4097, 4, EINVAL},
        {offsetof(RingHeader, capacity), kSmall * 2, 8, EINVAL},
        {offsetof(RingHeader, capacity), kSmall - 8, 8, EINVAL},
        {offsetof(RingHeader, capacity), ~0ull, 8, EINVAL},
        {offsetof(RingHeader, head), kSmall + 8, 8, EINVAL},
        {offsetof(RingHeader, head), 4, 8, EINVAL},
        {offsetof(RingHeader, acked), 8, 8, EINVAL},
        {offsetof(RingHeader, freed), 8, 8, EINVAL},
        {offsetof(RingHeader, limit), kSmall + 8, 8, EINVAL},
    };
    for (const auto& damage : damages) {
        Scratch scratch;
        const std::string path = scratch.file("a.ring");
        Ring ring;
        CHECK_EQUAL(create_ring(ring, path, kSmall), 0);
        ring.unmap();
        overwrite(path, damage.offset, &damage.value, damage.bytes);
        CHECK_EQUAL(ring.open(path.c_str(), true), damage.error);
        CHECK(!ring.is_open());
    }
}

CASE(a_ring_of_another_user_is_refused) {
    if (geteuid() != 0) {
        printf("not root: the ring of another user is not tested\n");
        return;
    }
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, kSmall), 0);
    ring.unmap();
    CHECK_EQUAL(chown(path.c_str(), 65534, 65534), 0);
    CHECK_EQUAL(ring.open(path.c_str(), true), EPERM);
}

// --- order and wrap-around -----------------------------------------------------------------------------------------

CASE(records_of_any_length_arrive_in_order_over_many_laps) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    Reader reader(ring);
    u64 written = 0, read = 0;
    while (written < 20'000) {
        for (u32 burst = 0; burst < 1 + mix64(written) % 60; ++burst) CHECK(write_text(ring, written++));
        reader.read([&](const RecordHeader& record, char* place) {
            CHECK(is_valid(record));
            CHECK(is_text_of(place, read++));
        });
        CHECK_EQUAL(read, written);
        reader.release();
    }
    CHECK(reader.at > 50 * kSmall);
    ring.unmap();
}

CASE(a_record_not_committed_holds_the_reader_back) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    char* slow = ring.reserve(sizeof(EventRecord), static_cast<u8>(Kind::FREE));
    CHECK(write_event(ring, Kind::MALLOC, 1, 1));
    Reader reader(ring);
    u64 kinds[64] = {};
    const auto count = [&](const RecordHeader& record, char*) { ++kinds[record.kind]; };
    CHECK_EQUAL(reader.read(count), 0u);
    Ring::commit(slow, sizeof(EventRecord), static_cast<u8>(Kind::FREE), 0);
    CHECK_EQUAL(reader.read(count), 2u);
    CHECK_EQUAL(kinds[static_cast<u8>(Kind::FREE)], 1u);
    ring.unmap();
}

CASE(several_threads_and_a_reader_lose_nothing_and_keep_each_threads_order) {
    constexpr u32 kThreads = 4;
    constexpr u64 kEach = 30'000;
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), 1 << 20), 0);
    ring.wait_ns = 20'000'000'000;  // the machine may be busy: this case is not about dropping
    std::vector<std::thread> threads;
    for (u32 thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&ring, thread] {
            for (u64 number = 0; number < kEach; ++number) write_event(ring, Kind::MALLOC, thread, number);
        });
    u64 next[kThreads] = {};
    u64 total = 0;
    bool in_order = true;
    Reader reader(ring);
    while (total < kThreads * kEach && sum(ring.header->lost) == 0) {
        const u64 found = reader.read([&](const RecordHeader&, char* place) {
            const auto& event = *reinterpret_cast<EventRecord*>(place);
            in_order = in_order && event.tid < kThreads && is_event_of(event, event.tid, next[event.tid]++);
        });
        reader.release();
        total += found;
        if (found == 0) nap(100'000);
    }
    for (auto& thread : threads) thread.join();
    CHECK_EQUAL(sum(ring.header->lost), 0u);
    CHECK(in_order);
    for (u64 count : next) CHECK_EQUAL(count, kEach);
    ring.unmap();
}

// --- full ------------------------------------------------------------------------------------------------------------

CASE(a_full_ring_waits_once_then_drops_and_the_gap_says_exactly_what) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    ring.wait_ns = 30'000'000;
    const u64 fits = kSmall / sizeof(EventRecord);
    for (u64 i = 0; i < fits; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    CHECK_EQUAL(ring.header->waits.load(), 0u);
    const u64 before = monotonic_ns();
    for (u64 i = 0; i < 1000; ++i) CHECK(!write_event(ring, Kind::MALLOC, 1, fits + i));
    for (u64 i = 0; i < 7; ++i) CHECK(!write_event(ring, Kind::FREE, 1, i));
    CHECK(monotonic_ns() - before >= ring.wait_ns);
    CHECK_EQUAL(ring.header->waits.load(), 1u);
    CHECK_EQUAL(ring.header->lost[static_cast<u8>(Kind::MALLOC)].load(), 1000u);
    CHECK_EQUAL(ring.header->lost[static_cast<u8>(Kind::FREE)].load(), 7u);

    // Less than a quarter free: it goes on dropping.
    ring.release(100 * sizeof(EventRecord));
    CHECK(!write_event(ring, Kind::MALLOC, 1, 0));
    Reader reader(ring);
    const auto skip = [](const RecordHeader&, char*) {};
    reader.read(skip);
    reader.release();
    const u64 gap_begins = ring.header->head.load();
    CHECK(write_event(ring, Kind::MALLOC, 1, 4711));
    std::map<u32, i64> told;
    u64 last = 0;
    reader.read([&](const RecordHeader& record, char* place) {
        const auto& event = *reinterpret_cast<EventRecord*>(place);
        if (record.kind == static_cast<u8>(Kind::GAP)) {
            CHECK(last == 0);  // the gaps stand before what was written after them
            told[event.aux] = event.size;
            CHECK_EQUAL(event.ptr, gap_begins);  // nothing went in between
            CHECK(event.attr >= gap_begins);
        } else {
            last = event.ptr;
        }
    });
    CHECK_EQUAL(last, 4711u);
    CHECK_EQUAL(told.size(), 2u);
    CHECK_EQUAL(told[static_cast<u8>(Kind::MALLOC)], 1001);
    CHECK_EQUAL(told[static_cast<u8>(Kind::FREE)], 7);
    CHECK_EQUAL(sum(ring.header->reported), 1008u);

    // Full again: waits once more, and the next gap tells the new losses only.
    reader.release();
    u64 written = 0;
    while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
    CHECK_EQUAL(ring.header->waits.load(), 2u);
    reader.read(skip);
    reader.release();
    CHECK(write_event(ring, Kind::MALLOC, 1, 0));
    reader.read([&](const RecordHeader& record, char* place) {
        if (record.kind != static_cast<u8>(Kind::GAP)) return;
        CHECK_EQUAL(reinterpret_cast<EventRecord*>(place)->size, 1);
    });
    ring.unmap();
}

CASE(never_block_never_waits) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    ring.wait_ns = 0;
    u64 written = 0;
    while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
    CHECK_EQUAL(written, kSmall / sizeof(EventRecord));
    CHECK_EQUAL(ring.header->waits.load(), 0u);
    CHECK_EQUAL(ring.header->lost[static_cast<u8>(Kind::MALLOC)].load(), 1u);
    ring.unmap();
}

CASE(a_slow_reader_does_not_make_every_record_wait) {
    // Room for a record now and then: each would be worth waiting for, but the wait is for all of them together.
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    ring.wait_ns = 20'000'000;
    u64 written = 0;
    while (written < kSmall / sizeof(EventRecord)) write_event(ring, Kind::MALLOC, 1, written++);
    std::atomic<bool> stop{false};
    std::thread agent([&] {
        for (u64 at = sizeof(EventRecord); at < kSmall / 4 && !stop; at += sizeof(EventRecord)) {
            ring.release(at);
            nap(1'000'000);
        }
    });
    for (u32 i = 0; i < 150; ++i) write_event(ring, Kind::MALLOC, 1, written++);
    stop = true;
    agent.join();
    CHECK_EQUAL(ring.header->waits.load(), 1u);
    CHECK(ring.header->lost[static_cast<u8>(Kind::MALLOC)].load() > 0);
    ring.unmap();
}

CASE(written_and_lost_add_up_per_kind_with_threads_and_a_slow_reader) {
    constexpr u32 kThreads = 4;
    constexpr u64 kEach = 40'000;
    const Kind kinds[] = {Kind::MALLOC, Kind::FREE};
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    ring.wait_ns = 1'000'000;
    std::atomic<u64> accepted{0};
    std::atomic<u32> running{kThreads};
    std::vector<std::thread> threads;
    for (u32 thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&, thread] {
            u64 mine = 0;
            for (u64 number = 0; number < kEach; ++number) {
                mine += write_event(ring, kinds[number % 2], thread, number);
                if (number % 512 == 0) nap(200'000);
            }
            accepted += mine;
            --running;
        });
    u64 read[64] = {};
    u64 told[64] = {};
    i64 newest[kThreads] = {-1, -1, -1, -1};
    bool sound = true;
    Reader reader(ring);
    const auto use = [&](const RecordHeader& record, char* place) {
        const auto& event = *reinterpret_cast<EventRecord*>(place);
        ++read[record.kind];
        if (record.kind == static_cast<u8>(Kind::GAP)) {
            told[event.aux] += static_cast<u64>(event.size);
            return;
        }
        sound = sound && event.tid < kThreads && is_event_of(event, event.tid, event.ptr) &&
                static_cast<i64>(event.ptr) > newest[event.tid];
        if (sound) newest[event.tid] = static_cast<i64>(event.ptr);
    };
    while (running.load() != 0) {
        reader.read(use);
        nap(2'000'000);
        reader.release();
    }
    for (auto& thread : threads) thread.join();
    reader.read(use);
    CHECK(sound);
    CHECK(sum(ring.header->lost) > 0);  // else this case tests nothing
    CHECK(read[static_cast<u8>(Kind::GAP)] > 0);
    u64 read_in_all = 0;
    for (Kind kind : kinds) {
        const u8 k = static_cast<u8>(kind);
        CHECK_EQUAL(read[k] + ring.header->lost[k].load(), kThreads * kEach / 2);
        CHECK_EQUAL(told[k], ring.header->reported[k].load());
        CHECK(told[k] <= ring.header->lost[k].load());
        read_in_all += read[k];
    }
    CHECK_EQUAL(read_in_all, accepted.load());
    ring.unmap();
}

// --- giving back -----------------------------------------------------------------------------------------------------

CASE(an_agent_killed_between_acked_and_freed_is_continued) {
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, kSmall), 0);
    const u64 fits = kSmall / sizeof(EventRecord);
    for (u64 i = 0; i < fits; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    // What release(half) does, up to somewhere in the middle of the zeroing.
    const u64 half = fits / 2 * sizeof(EventRecord);
    ring.header->acked.store(half);
    memset(ring.data, 0, half / 3);

    Ring successor;
    CHECK_EQUAL(successor.open(path.c_str(), true), 0);
    successor.recover();
    CHECK_EQUAL(successor.header->freed.load(), half);
    for (u64 i = 0; i < half; ++i) CHECK_EQUAL(ring.data[i], 0);
    u64 expected = fits / 2;
    Reader reader(successor);
    reader.read([&](const RecordHeader&, char* place) {
        CHECK(is_event_of(*reinterpret_cast<EventRecord*>(place), 1, expected++));
    });
    CHECK_EQUAL(expected, fits);
    const u64 in_whole_pages = half / 4096 * 4096 / sizeof(EventRecord);
    for (u64 i = 0; i < in_whole_pages; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, fits + i));
    ring.unmap();
    successor.unmap();
}

CASE(an_old_acknowledgement_moves_nothing_and_one_beyond_the_head_is_refused) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    for (u64 i = 0; i < 10; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    ring.release(5 * sizeof(EventRecord));
    ring.release(2 * sizeof(EventRecord));
    CHECK_EQUAL(ring.header->acked.load(), 5 * sizeof(EventRecord));
    ring.release(11 * sizeof(EventRecord));
    CHECK_EQUAL(ring.header->acked.load(), 5 * sizeof(EventRecord));
    CHECK_EQUAL(ring.header->freed.load(), 5 * sizeof(EventRecord));
    ring.unmap();
}

CASE(readers_killed_at_any_moment_leave_every_record_to_their_successors) {
    constexpr u64 kRecords = 60'000;
    struct Seen {
        std::atomic<u64> next;  // every record below was read by somebody
        std::atomic<bool> gap;
    };
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, kSmall), 0);
    ring.wait_ns = 60'000'000'000;
    Seen* seen = shared_memory<Seen>();
    const auto read_on = [&] {
        Ring mine;
        if (mine.open(path.c_str(), true) != 0) _exit(1);
        mine.recover();
        Reader reader(mine);
        while (seen->next.load() < kRecords) {
            reader.read([&](const RecordHeader&, char* place) {
                const auto& event = *reinterpret_cast<EventRecord*>(place);
                const u64 next = seen->next.load();
                if (event.ptr > next || !is_event_of(event, 1, event.ptr)) seen->gap = true;
                if (event.ptr == next) seen->next = next + 1;
            });
            reader.release();
        }
        _exit(0);
    };
    const pid_t writer = fork();
    if (writer == 0) {
        for (u64 i = 0; i < kRecords; ++i) write_event(ring, Kind::MALLOC, 1, i);
        _exit(0);
    }
    std::mt19937_64 random(4711);
    u32 killed = 0;
    for (;;) {
        const pid_t reader = fork();
        if (reader == 0) read_on();
        if (killed < 20) {
            nap(static_cast<long>(random() % 3'000'000));
            if (kill(reader, SIGKILL) == 0) ++killed;
        }
        int status = 0;
        CHECK_EQUAL(waitpid(reader, &status, 0), reader);
        if (WIFEXITED(status)) {
            CHECK_EQUAL(WEXITSTATUS(status), 0);
            break;
        }
    }
    CHECK_EQUAL(waitpid(writer, nullptr, 0), writer);
    CHECK_EQUAL(seen->next.load(), kRecords);
    CHECK(!seen->gap.load());
    CHECK_EQUAL(sum(ring.header->lost), 0u);
    munmap(seen, sizeof(Seen));
    ring.unmap();
}

// --- killed writers --------------------------------------------------------------------------------------------------

CASE(holes_of_a_dead_writer_are_stepped_over_whatever_is_in_them) {
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kSmall), 0);
    const auto hole = [&](u32 length) { return ring.reserve(length, static_cast<u8>(Kind::STACK)); };
    memset(hole(sizeof(EventRecord)) + 8, 0xFF, sizeof(EventRecord) - 8);  // at the very beginning
    CHECK(write_event(ring, Kind::MALLOC, 1, 0));
    hole(8);
    hole(1000);  // two in a row, still zeros
    CHECK(write_text(ring, 1));
    // Bodies that imitate header words: of a record that is too long to end in the hole, and of one that ends in it.
    char* liar = hole(800);
    Ring::commit(liar + 8, 4000, static_cast<u8>(Kind::MALLOC), 0);
    Ring::commit(liar + 24, 96, static_cast<u8>(Kind::MALLOC), 0);
    memset(liar + 120, 0xAB, 680);
    for (u64 i = 2; i < 30; ++i) CHECK(write_event(ring, Kind::FREE, 1, i));
    hole(96);  // at the very end
    Reader reader(ring);
    std::vector<u64> numbers;
    reader.read(
        [&](const RecordHeader& record, char* place) {
            if (record.kind == static_cast<u8>(Kind::STRING))
                numbers.push_back(reinterpret_cast<StringRecord*>(place)->id);
            else
                numbers.push_back(reinterpret_cast<EventRecord*>(place)->ptr);
        },
        true);
    CHECK_EQUAL(numbers.size(), 30u);
    for (u64 i = 0; i < 30; ++i) CHECK_EQUAL(numbers[i], i);
    CHECK_EQUAL(reader.at, ring.header->head.load());
    CHECK_EQUAL(reader.holes, 4u);
    ring.unmap();
}

CASE(a_writer_killed_at_any_moment_leaves_every_committed_record) {
    constexpr u32 kThreads = 3;
    constexpr u32 kRounds = 40;
    struct Progress {
        std::atomic<u64> committed[kThreads];
    };
    Progress* progress = shared_memory<Progress>();
    std::mt19937_64 random(42);
    u64 holes = 0, records = 0;
    for (u32 round = 0; round < kRounds; ++round) {
        Scratch scratch;
        const std::string path = scratch.file("a.ring");
        Ring ring;
        CHECK_EQUAL(create_ring(ring, path, 1 << 20), 0);
        for (auto& count : progress->committed) count = 0;
        const pid_t writer = fork();
        if (writer == 0) {
            Ring mine;
            if (mine.open(path.c_str(), true) != 0) _exit(1);
            mine.wait_ns = 60'000'000'000;
            std::vector<std::thread> threads;
            for (u32 thread = 0; thread < kThreads; ++thread)
                threads.emplace_back([&mine, progress, thread] {
                    for (u64 number = 0;; ++number) {
                        write_event(mine, Kind::MALLOC, thread, number, number % 16 == 0);
                        progress->committed[thread].store(number + 1);
                    }
                });
            for (auto& thread : threads) thread.join();
        }
        u64 next[kThreads] = {};
        bool sound = true;
        Reader reader(ring);
        const auto use = [&](const RecordHeader&, char* place) {
            const auto& event = *reinterpret_cast<EventRecord*>(place);
            sound = sound && event.tid < kThreads && is_event_of(event, event.tid, next[event.tid]++);
        };
        const auto follow = [&] {
            if (reader.read(use) == 0) nap(20'000);
            reader.release();
        };
        const u64 give_up = monotonic_ns() + 60'000'000'000;
        while (reader.at == 0 && monotonic_ns() < give_up) follow();  // the machine may be slow to start it
        const u64 kill_at = monotonic_ns() + random() % 6'000'000;
        while (monotonic_ns() < kill_at) follow();
        CHECK_EQUAL(kill(writer, SIGKILL), 0);
        CHECK_EQUAL(waitpid(writer, nullptr, 0), writer);
        reader.read(use, true);
        CHECK(sound);
        CHECK_EQUAL(reader.at, ring.header->head.load());
        for (u32 thread = 0; thread < kThreads; ++thread) {
            const u64 committed = progress->committed[thread].load();
            // One more may have been committed before the thread could say so.
            CHECK(next[thread] == committed || next[thread] == committed + 1);
            records += next[thread];
        }
        CHECK(reader.holes <= kThreads);
        holes += reader.holes;
        ring.unmap();
    }
    printf("killed %u writers: %llu records, %llu holes\n", kRounds, static_cast<unsigned long long>(records),
           static_cast<unsigned long long>(holes));
    CHECK(records > 0);
    CHECK(holes > 0);
    munmap(progress, sizeof(Progress));
}

CASE(a_damaged_ring_is_searched_in_linear_time) {
    // A zero word at the start and an invalid one at the end: what lies between is found, not skipped.
    Scratch scratch;
    Ring ring;
    CHECK_EQUAL(create_ring(ring, scratch.file("a.ring"), kDefaultRingBytes), 0);
    ring.reserve(sizeof(EventRecord), 0);
    u64 written = 0;
    while (ring.header->head.load() + 2 * sizeof(EventRecord) < ring.capacity())
        CHECK(write_event(ring, Kind::MALLOC, 1, written++));
    char* last = ring.reserve(8, 0);
    const u64 noise = 0x1234567812345678;
    memcpy(last, &noise, 8);
    CHECK_EQUAL(ring.next_committed(0), sizeof(EventRecord));
    CHECK_EQUAL(ring.next_committed(ring.capacity() + 8), ring.header->head.load());
    ring.header->head.store(~7ull);
    CHECK_EQUAL(ring.next_committed(0), ~7ull);
    ring.header->freed.store(0);
    ring.header->acked.store(1ull << 62);
    ring.recover();  // must not write beyond the mapping
    ring.unmap();
}

// --- memory ----------------------------------------------------------------------------------------------------------

CASE(a_ring_takes_the_memory_of_what_is_under_way_and_gives_it_back) {
    if (memory_is_emulated()) return;
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, kDefaultRingBytes), 0);
    const u64 idle = kRingHeaderBytes + kGrowthBytes;
    CHECK_EQUAL(taken(path), idle);
    // A worker that records now and then: three laps, and never more than it has under way.
    const u64 laps = 3 * kDefaultRingBytes / sizeof(EventRecord);
    u64 most = 0;
    Reader reader(ring);
    u64 expected = 0;
    bool sound = true;
    for (u64 i = 0; i < laps; ++i) {
        CHECK(write_event(ring, Kind::MALLOC, 1, i));
        if (i % 500 != 0) continue;
        reader.read([&](const RecordHeader&, char* place) {
            sound = sound && is_event_of(*reinterpret_cast<EventRecord*>(place), 1, expected++);
        });
        if (i % 5000 == 0) most = std::max(most, taken(path));
        reader.release();
        CHECK(i % 50'000 != 0 || taken(path) <= idle + 2 * 4096);
    }
    CHECK(sound);
    CHECK(most <= idle + kGrowthBytes + 2 * 4096);
    // Nobody reads: it grows to its capacity, and shrinks to where it began.
    ring.wait_ns = 0;
    u64 written = 0;
    while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
    CHECK(written >= (kDefaultRingBytes - 2 * 4096) / sizeof(EventRecord) - 500);
    CHECK(taken(path) > kDefaultRingBytes - 4096);
    while (ring.header->acked.load() < ring.header->head.load())
        ring.release(std::min(ring.header->acked.load() + (1 << 17), ring.header->head.load()));
    CHECK(taken(path) <= idle + 4096);
    ring.unmap();
}

CASE(a_busy_ring_keeps_its_pages) {
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, 1 << 20), 0);
    const u64 count = (1 << 19) / sizeof(EventRecord);
    for (u64 i = 0; i < count; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    const u64 before = taken(path);
    ring.release(ring.header->head.load());
    CHECK_EQUAL(taken(path), before);
    for (u64 i = 0; i < 1 << 19; ++i) CHECK_EQUAL(ring.data[i], 0);
    ring.unmap();
}

CASE(where_memory_cannot_be_backed_safely_all_of_it_is_reserved_first) {
    populate_error = EINVAL;  // a kernel before 5.14
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, 1 << 20), 0);
    CHECK_EQUAL(taken(path), kRingHeaderBytes + (1 << 20));
    for (u64 i = 0; i < 30'000; ++i) {
        CHECK(write_event(ring, Kind::MALLOC, 1, i));
        ring.release(ring.header->head.load());
    }
    CHECK_EQUAL(taken(path), kRingHeaderBytes + (1 << 20));
    populate_error = 0;
    ring.unmap();
}

// In a process of its own, on a file system of its own of `bytes`: the exit status of what it does there.
template <typename Act>
int on_a_small_file_system(u64 bytes, Act act) {
    constexpr int kNotPermitted = 77;
    const pid_t child = fork();
    if (child == 0) {
        char folder[] = "/tmp/msmemscope-test-XXXXXX";
        const std::string size = "mode=0700,size=" + std::to_string(bytes);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mkdtemp(folder) == nullptr || mount("tmpfs", folder, "tmpfs", 0, size.c_str()) != 0)
            _exit(kNotPermitted);
        const int result = act(std::string(folder) + "/");
        umount2(folder, MNT_DETACH);
        rmdir(folder);
        _exit(result);
    }
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted) {
        printf("a file system cannot be mounted here: not tested\n");
        return 0;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool fill(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static const char zeros[4096] = {};
    while (write(fd, zeros, sizeof zeros) == static_cast<ssize_t>(sizeof zeros)) {
    }
    close(fd);
    return errno == ENOSPC;
}

CASE(a_full_file_system_costs_records_that_are_counted_and_never_the_process) {
    if (memory_is_emulated()) return;
    CHECK_EQUAL(on_a_small_file_system(8 << 20,
                                       [](const std::string& folder) {
                                           Ring ring;
                                           if (create_ring(ring, folder + "a.ring", 4 << 20) != 0) return 1;
                                           ring.wait_ns = 1'000'000;
                                           u64 went_in = 0;
                                           for (u64 i = 0; i < 500; ++i)
                                               went_in += write_event(ring, Kind::MALLOC, 1, i);
                                           if (went_in != 500 || !fill(folder + "others")) return 2;
                                           for (u64 i = 0; i < 100'000; ++i)
                                               went_in += write_event(ring, Kind::MALLOC, 1, i);
                                           const u64 lost = ring.header->lost[static_cast<u8>(Kind::MALLOC)].load();
                                           if (lost == 0 || went_in + lost != 100'500 || ring.header->waits.load() != 1)
                                               return 3;
                                           Ring second;
                                           if (create_ring(second, folder + "b.ring", 4 << 20) != ENOSPC) return 4;
                                           // There is room again: it goes on, with a GAP that tells all of them.
                                           unlink((folder + "others").c_str());
                                           nap(2 * static_cast<long>(kRetryNs));
                                           if (!write_event(ring, Kind::MALLOC, 1, 0)) return 5;
                                           if (ring.header->reported[static_cast<u8>(Kind::MALLOC)].load() != lost)
                                               return 6;
                                           return 0;
                                       }),
                0);
}

CASE(a_ring_leaves_an_eighth_of_the_file_system_to_others) {
    if (memory_is_emulated()) return;
    CHECK_EQUAL(on_a_small_file_system(16 << 20,
                                       [](const std::string& folder) {
                                           Ring ring;
                                           if (create_ring(ring, folder + "a.ring", 8 << 20) != 0) return 1;
                                           Ring second;
                                           if (create_ring(second, folder + "b.ring", 8 << 20) != 0) return 1;
                                           ring.wait_ns = second.wait_ns = 0;
                                           u64 written = 0;
                                           while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
                                           if (written < (8 << 20) / sizeof(EventRecord))
                                               return 2;  // the first gets all it may have
                                           while (write_event(second, Kind::MALLOC, 1, written)) ++written;
                                           struct statvfs space;
                                           if (statvfs(folder.c_str(), &space) != 0) return 3;
                                           const u64 free = space.f_bavail * space.f_frsize;
                                           return free >= 2 << 20 && free <= (2 << 20) + kGrowthBytes ? 0 : 4;
                                       }),
                0);
}

CASE(a_writer_wakes_a_reader_that_sleeps_when_it_needs_more_memory) {
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, 1 << 20), 0);
    const timespec long_ago[2] = {{1, 0}, {1, 0}};
    const auto touched = [&] {
        struct stat info;
        return stat(path.c_str(), &info) == 0 && info.st_atim.tv_sec != 1;
    };
    const u64 piece = kGrowthBytes / sizeof(EventRecord);
    CHECK_EQUAL(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
    for (u64 i = 0; i < 2 * piece; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    CHECK(!touched());
    ring.header->asleep.store(1);
    errno = ERANGE;
    for (u64 i = 0; i < 2 * piece; ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    CHECK_EQUAL(errno, ERANGE);
    CHECK(touched());
    CHECK_EQUAL(ring.header->asleep.load(), 0u);
    // Nor does it drop anything before it has woken the reader: full, with nothing left to ask for.
    ring.wait_ns = 0;
    u64 written = 0;
    while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
    ring.release(ring.header->head.load());
    while (write_event(ring, Kind::MALLOC, 1, written)) ++written;
    ring.header->dropping.store(0);
    ring.header->asleep.store(1);
    CHECK_EQUAL(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
    CHECK(!write_event(ring, Kind::MALLOC, 1, written));
    CHECK(touched());
    ring.unmap();
}

CASE(a_sleeping_reader_is_woken_where_all_memory_was_reserved_first) {
    populate_error = EINVAL;  // a kernel before 5.14
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    Ring ring;
    CHECK_EQUAL(create_ring(ring, path, 1 << 20), 0);
    ring.header->asleep.store(1);
    for (u64 i = 0; i < 2 * kGrowthBytes / sizeof(EventRecord); ++i) CHECK(write_event(ring, Kind::MALLOC, 1, i));
    CHECK_EQUAL(ring.header->asleep.load(), 0u);
    populate_error = 0;
    ring.unmap();
}

// --- sign of life ----------------------------------------------------------------------------------------------------

CASE(the_owners_lock_ends_with_its_address_space_and_with_nothing_else) {
    if (memory_is_emulated()) return;
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    int to_child[2], to_parent[2];
    CHECK_EQUAL(pipe(to_child), 0);
    CHECK_EQUAL(pipe(to_parent), 0);
    const auto say = [&] { CHECK_EQUAL(write(to_child[1], "x", 1), 1); };
    const auto hear = [&] {
        char word;
        CHECK_EQUAL(read(to_parent[0], &word, 1), 1);
    };
    const auto has_owner = [&] {
        bool unknown = false;
        const bool owner = Ring::has_owner(path.c_str(), unknown);
        CHECK(!unknown);
        return owner;
    };
    const pid_t owner = fork();
    if (owner == 0) {
        char word;
        setpgid(0, 0);
        Ring ring;
        const bool made = create_ring(ring, path, kSmall) == 0 && ring.header->locked != 0;
        // What a daemon does: closes every descriptor it does not know. And a child that outlives it.
        for (int fd = 3; fd < 256; ++fd)
            if (fd != to_child[0] && fd != to_parent[1]) close(fd);
        if (fork() == 0) {
            for (;;) pause();
        }
        (void)!write(to_parent[1], made ? "y" : "n", 1);
        (void)!read(to_child[0], &word, 1);
        // Another thread lives on behind the first.
        std::thread([&] {
            nap(50'000'000);
            (void)!write(to_parent[1], "t", 1);
            (void)!read(to_child[0], &word, 1);
            execl("/bin/sleep", "sleep", "1000", nullptr);
        }).detach();
        syscall(SYS_exit, 0);
    }
    hear();
    CHECK(has_owner());
    say();
    hear();  // its first thread is gone
    CHECK(has_owner());
    say();
    const u64 deadline = monotonic_ns() + 20'000'000'000;
    while (has_owner() && monotonic_ns() < deadline) nap(1'000'000);  // exec
    CHECK(!has_owner());
    CHECK_EQUAL(kill(-owner, SIGKILL), 0);
    CHECK_EQUAL(waitpid(owner, nullptr, 0), owner);
}

CASE(a_killed_owner_is_gone_when_it_is_waited_for) {
    Scratch scratch;
    const std::string path = scratch.file("a.ring");
    int ready[2];
    CHECK_EQUAL(pipe(ready), 0);
    const pid_t owner = fork();
    if (owner == 0) {
        Ring ring;
        (void)!write(ready[1], create_ring(ring, path, kSmall) == 0 ? "y" : "n", 1);
        for (;;) pause();
    }
    char word;
    CHECK_EQUAL(read(ready[0], &word, 1), 1);
    bool unknown = false;
    CHECK(Ring::has_owner(path.c_str(), unknown));
    CHECK_EQUAL(kill(owner, SIGKILL), 0);
    CHECK_EQUAL(waitpid(owner, nullptr, 0), owner);
    CHECK(!Ring::has_owner(path.c_str(), unknown));
    CHECK(!unknown);
    CHECK(!Ring::has_owner((path + "x").c_str(), unknown));
    CHECK(unknown);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
