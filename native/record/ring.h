// The ring: a file in shared memory through which one process hands its records to the node's agent.
//
// Specification
// -------------
// The file is one header page followed by `capacity` bytes of data; capacity is a power of two and a multiple
// of the page size. Both sides map the data twice, back to back, so a record that crosses the end is still
// contiguous in memory. Positions are 64-bit byte offsets that only grow; offset & (capacity - 1) is the place
// in the data.
//
//        freed        acked                     head             limit
//   ───────┼────────────┼─────────────────────────┼────────────────┼─────────────▶ offsets
//    holes │ being      │ records: committed, or  │ zeros, free    │ holes: no memory
//          │ cleared    │ reserved and still 0    │ for writers    │ yet
//
// Memory. A ring takes the memory of what is under way, not of its capacity. Writers may reserve below `limit`, up to
// which the file is backed. Whoever comes to it has the next kGrowthBytes (a quarter of a large backlog) backed by the
// kernel (MADV_POPULATE_WRITE, an error where a plain store would be a SIGBUS) and then moves it; it is a multiple of
// the page size and at most capacity beyond the page that `freed` lies in. More than kAssuredBytes are taken only while
// the file system keeps an eighth, or kRoomLeft, for others: a program that finds /dev/shm full is killed. The agent
// gives whole pages behind `acked` back as holes, unless that much is released at once that the ring is busy: then it
// only zeroes them. An idle ring takes a page and at most kGrowthBytes; 64 of them 4.5 MiB. Kernels before 5.14 cannot
// back memory safely, and emulators do not at all: there `grows` is 0, all of the file is reserved when it is made, and
// the agent zeroes.
//
// Who may write what:
//   * any thread of the owning process: `head` and `limit` (compare-and-swap), the bytes it reserved, `lost`, `step`
//     and the identity fields. There is exactly one owning process; a forked child makes a ring of its own, and one
//     that cannot adds itself to `unwatched`.
//   * the agent, alone on its node: `acked`, `freed`, `asleep`, and zeros or holes into [freed, acked).
//
// Sign of life. The owner holds a shared flock on the file through a mapping of the header page of its own: the lock
// goes with the open file description, which lives as long as the mapping. So no descriptor stays open that the
// program could close, a forked child does not inherit it (MADV_DONTFORK), and the kernel drops it with the address
// space: at exit, exec and SIGKILL, when the last thread has ended, in whatever PID namespace. Who can take the lock
// exclusively knows that nobody writes any more. `locked` is 0 where a file system does not keep such a lock; then the
// process is looked up by pid and start.
//
// A reader that means to sleep long sets `asleep`; the writer that next moves `limit`, or finds no room to, clears it
// and touches the file's times, which wakes whoever watches the directory. Otherwise a writer never wakes anybody.
//
// A writer reserves length bytes by moving `head`, fills everything after the header word, and commits by
// storing that word (length, kind, flags, version: 8 bytes) with release order. Free space reads as zeros, so a
// reader that loads a zero header word (acquire) knows that the record is not there yet and waits; it never
// sees half a record. It looks at offsets below `head` only: in a full ring the place of `head` still holds the
// oldest record, or no memory. Records are in the order of reservation, which is the order in which the allocator acted
// as long as a FREE is recorded before and a MALLOC after the real call.
//
// The agent moves `acked` when the aggregator has the bytes on disk. Then it clears [freed, acked) and moves
// `freed`. The order makes it restartable: an agent killed in between clears the same range again. An offset
// is therefore the sequence number of what begins there, and the ring is the retransmission buffer.
//
// What a crash leaves:
//   * writer killed: every committed record. A record reserved but not committed is a hole that begins with a
//     zero word and may hold some of the record's bytes behind it (at most one per thread); once the process is
//     gone the reader looks at the word once more, then steps over the hole (next_committed) and reports it.
//     Nobody can tell the hole of a thread that ended asynchronously from a slow thread while the process lives: the
//     reader waits there until the process ends.
//   * agent killed: all of the above; its successor goes on from `acked`.
//   * machine down: the ring is gone, like everything in /dev/shm.
//
// Full: the first writer that finds no room opens a wait of at most `wait_ns`, which all threads share and which
// opens again only after another quarter of the ring went through: a dead reader costs the job wait_ns in all, a
// slow one wait_ns per quarter ring, and no record waits on its own account. When the wait ends without room the
// ring is `dropping`: every record is counted in lost[kind] without waiting, until a quarter of the ring is free
// again. The next record then goes in behind one GAP record per kind that lost something; a record lost while
// these are written is told by the next GAP, or by nobody but `lost` if there is none. So `lost` is the truth of
// how many (for a process killed while it wrote a GAP too), and the GAPs tell where. No memory for more is the same as
// full, except that it is tried again only after kRetryNs. Reserving and committing takes no lock and makes no system
// call except in the wait and, every kGrowthBytes, for memory.
//
// What a damaged file can do: the job can scribble over its own ring. open() refuses a header that contradicts
// itself, and no function here leaves the mapping or loops without end whatever the shared fields hold; what the
// bytes of a record say is the cutter's business.
#pragma once

#include <atomic>

#include "record/record.h"

namespace memscope {

inline constexpr char kRingMagic[8] = {'M', 'S', 'C', 'R', 'I', 'N', 'G', '1'};
inline constexpr u32 kRingHeaderBytes = 4096;
inline constexpr u32 kRingVersion = 2;
inline constexpr u64 kDefaultRingBytes = 16ull << 20;  // some 170,000 events
inline constexpr u64 kGrowthBytes = 64ull << 10;       // what a ring begins with, and grows by
inline constexpr u64 kAssuredBytes = 1ull << 20;       // that a ring takes whatever is left for others
inline constexpr u64 kRoomLeft = 256ull << 20;
inline constexpr u64 kRetryNs = 20'000'000;

// Layout of kRingVersion, shared between processes: fixed offsets, no pointers.
struct RingHeader {
    char magic[8];
    u32 version;
    u32 header_bytes;
    u64 capacity;
    u64 ring_id;         // random but for the last 16 bits, the process's pid; never 0: names the ring in batches
    u64 parent_ring_id;  // ring of the process of the same rank that started this one, or 0
    u32 pid;
    u32 ppid;
    u32 uid;
    u32 page_bytes;
    u64 process_start;   // field 22 of /proc/<pid>/stat: tells a process from a later one with its pid
    u64 created_ns;      // CLOCK_MONOTONIC
    i64 wall_offset_ns;  // CLOCK_REALTIME - CLOCK_MONOTONIC at creation
    i32 rank;            // -1: not a rank
    i32 local_rank;
    i32 world_size;
    i32 group_rank;     // node
    u32 attempt;        // elastic restart count
    u32 locked;         // the owner's lock holds, see "Sign of life"
    u64 pid_namespace;  // inode of the one that `pid` and `ppid` belong to; 0: not known
    u32 grows;          // see "Memory"
    u32 reserved;
    char role[32];
    char session[64];
    char host[64];
    char program[256];
    char command[256];  // its words separated by 0x1f, cut off; or the title that was set

    alignas(64) std::atomic<u64> head;
    alignas(64) std::atomic<u64> acked;
    std::atomic<u64> freed;
    alignas(64) std::atomic<u32> step;              // current step of the rank; children read it here
    std::atomic<u32> closed;                        // the process said goodbye (exit handler ran)
    std::atomic<u32> dropping;                      // full, see above
    std::atomic<u32> waits;                         // waits opened (two threads at once may count one twice)
    std::atomic<u64> wait_until;                    // CLOCK_MONOTONIC ns at which the newest wait ends
    std::atomic<u64> wait_mark;                     // head when it was opened
    std::atomic<u64> drop_from;                     // head when dropping began
    std::atomic<u64> limit;                         // end of what is backed: writers reserve below it
    std::atomic<u64> retry_at;                      // CLOCK_MONOTONIC ns before which no memory is asked for, or 0
    std::atomic<u32> asleep;                        // the agent wants to be woken
    alignas(64) std::atomic<u64> lost[kKindSlots];  // records of a kind ever lost here
    std::atomic<u64> reported[kKindSlots];          // ... of these, already told by a GAP record
    std::atomic<u32> unwatched;                     // forked children that record nothing: hook/unwatched.h
};
static_assert(sizeof(RingHeader) <= kRingHeaderBytes);
static_assert(std::atomic<u64>::is_always_lock_free && std::atomic<u32>::is_always_lock_free);

// A mapping of a ring file. Neither constructor nor destructor does anything: an object of static storage
// costs nothing at load and is still usable while the process exits.
class Ring {
public:
    RingHeader* header = nullptr;
    char* data = nullptr;  // 2 * capacity bytes, the second half mirrors the first

    bool is_open() const noexcept { return header != nullptr; }
    u64 capacity() const noexcept { return mask_ + 1; }

    // Creates `path` followed by '~' (it must not exist), mode 0600, and maps it. `bytes` is rounded up to a
    // power of two. Returns 0 or an errno; ENOSPC when the file system cannot hold it, or no first piece of it.
    int create(const char* path, u64 bytes) noexcept;

    // Gives the file its final name, once the identity fields are filled: the agent never sees a ring without
    // them. Returns 0 or an errno.
    static int publish(const char* path) noexcept;

    // Maps an existing ring. Returns 0 or an errno: EPERM when it belongs to another user, EPROTO when it is
    // not a ring of this version, EINVAL when its sizes contradict the file.
    int open(const char* path, bool writable) noexcept;

    void unmap() noexcept;

    // Does the process that made this ring live? False also when `path` cannot be asked: `unknown` is then set.
    static bool has_owner(const char* path, bool& unknown) noexcept;

    // --- writers -------------------------------------------------------------------------------------------

    u64 wait_ns = 20'000'000;

    // Asks for the line of `head`, which all threads write, while the record is still being filled: with two cores it
    // has to come from the other one.
    void prepare() const noexcept { __builtin_prefetch(static_cast<const void*>(&header->head), 1); }

    // Reserves `length` bytes (a multiple of 8). Returns their place, or nullptr when the record is lost; it is
    // then already counted under `kind`. The first 8 bytes are the header word and must be left alone.
    char* reserve(u32 length, u8 kind) noexcept {
        u64 at = header->head.load(std::memory_order_relaxed);
        if (__builtin_expect(header->dropping.load(std::memory_order_relaxed) != 0, 0))
            return reserve_slow(length, kind);
        for (;;) {
            // Acquire: the zeros of the freed space come before what we write there.
            if (__builtin_expect(at + length > header->limit.load(std::memory_order_acquire), 0))
                return reserve_slow(length, kind);
            if (header->head.compare_exchange_weak(at, at + length, std::memory_order_relaxed))
                return data + (at & mask_);
        }
    }

    // Publishes a filled record: one 8-byte store.
    static void commit(char* place, u32 length, u8 kind, u8 flags) noexcept {
        const u64 word = static_cast<u64>(length) | static_cast<u64>(kind) << 32 | static_cast<u64>(flags) << 40 |
                         static_cast<u64>(kRecordVersion) << 48;
        __atomic_store_n(reinterpret_cast<u64*>(place), word, __ATOMIC_RELEASE);
    }

    // --- the agent -----------------------------------------------------------------------------------------

    // The header of the record at `offset`, which is below `head`, or one with length 0 when none is committed there.
    RecordHeader peek(u64 offset) const noexcept {
        const u64 word = __atomic_load_n(reinterpret_cast<const u64*>(data + (offset & mask_)), __ATOMIC_ACQUIRE);
        RecordHeader header_word;
        __builtin_memcpy(&header_word, &word, sizeof word);
        return header_word;
    }

    // For a ring whose process is gone: the first offset >= `offset` at which a committed record is recognised by
    // the chain of valid records it begins, see kChainLinks; `head` when there is none. Everything in between was
    // never committed. Linear in the bytes it steps over.
    u64 next_committed(u64 offset) const noexcept;

    // Gives [acked, offset) back to the writers. An offset below `acked` (an old acknowledgement) moves nothing,
    // one above `head` is refused; either way what a killed agent began is finished.
    void release(u64 offset) noexcept;

    // Finishes what a killed agent began. Call once after open().
    void recover() noexcept;

private:
    char* reserve_slow(u32 length, u8 kind) noexcept;
    bool write_gaps() noexcept;
    u64 window_end() const noexcept;
    bool make_room(u64 length) noexcept;
    void wake_reader() noexcept;
    bool back(u64 from, u64 bytes) noexcept;
    void clear(u64 from, u64 to, bool give_back) noexcept;
    int map(int fd, u64 header_bytes, u64 capacity, bool writable) noexcept;
    bool hold_lock(const char* unfinished) noexcept;

    // The file's name, as create() was told it: for waking the agent, and for asking how full the file system is.
    char path_[512] = {};
    u64 mask_ = 0;
    u64 mapped_bytes_ = 0;
    u64 page_ = 0;
    void* lock_ = nullptr;  // the mapping that holds the owner's lock
};

// Bytes inside a hole may imitate a header word: a 64-bit value does with a probability of about 2^-40. A chain of
// this many, or one that ends exactly at a hole or at `head`, does not happen by chance.
inline constexpr u32 kChainLinks = 8;

// True when this looks like the start of a record that a writer of this version committed.
constexpr bool is_valid(const RecordHeader& record) noexcept {
    return record.version == kRecordVersion && record.length >= sizeof(RecordHeader) && record.length % 8 == 0 &&
           record.length <= kMaxRecordBytes && record.kind != 0 && record.kind <= kLastEventKind &&
           (record.kind >= kFirstEventKind || record.kind <= static_cast<u8>(Kind::STACK));
}

u64 monotonic_ns() noexcept;

}  // namespace memscope
