#include "record/ring.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace memscope {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc may be older
#endif

constexpr u64 kPollNs = 50'000;
constexpr u64 kSmallestRing = 65536;  // a quarter must hold the largest record and a GAP for each kind
constexpr u64 kLargestRing = 1ull << 40;
static_assert(kSmallestRing / 4 >= kMaxRecordBytes + kKindSlots * sizeof(EventRecord));

u64 round_up_to_power_of_two(u64 bytes, u64 at_least) noexcept {
    u64 capacity = at_least;
    while (capacity < bytes) capacity <<= 1;
    return capacity;
}

// Reserves [from, to) of the file now: a write into a hole of a full tmpfs would be a SIGBUS. In pieces, because tmpfs
// gives up with EINTR at any signal, and a program with a profiling timer would never get 16 MiB in one go.
int allocate(int fd, u64 from, u64 to) noexcept {
    constexpr u64 kPiece = 1ull << 20;
    // Do not take all that is left of /dev/shm from others just to find out that it is not enough.
    struct statvfs space;
    if (fstatvfs(fd, &space) == 0 && space.f_blocks != 0 && space.f_bavail * space.f_frsize < to - from) return ENOSPC;
    for (; from < to; from += kPiece) {
        const off_t length = static_cast<off_t>(to - from < kPiece ? to - from : kPiece);
        int error;
        u32 tries = 0;
        do {
            error = posix_fallocate(fd, static_cast<off_t>(from), length);  // returns the error, leaves errno alone
        } while (error == EINTR && ++tries < 1000);
        if (error != 0) return error;
    }
    return 0;
}

// Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which would kill the job.
bool exceeds_file_limit(u64 bytes) noexcept {
    rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

// Could the file system ever hold so much?
bool is_too_small(int fd, u64 bytes) noexcept {
    struct statvfs space;
    return fstatvfs(fd, &space) == 0 && space.f_blocks != 0 && space.f_blocks * space.f_frsize < bytes;
}

// Is there so much left where `path` lies that a ring which has kAssuredBytes may take `bytes` more?
bool leaves_room(const char* path, u64 bytes) noexcept {
    struct statvfs space;
    if (statvfs(path, &space) != 0 || space.f_blocks == 0) return true;  // not known: then only what there is counts
    const u64 eighth = space.f_blocks / 8 * space.f_frsize;
    return space.f_bavail * space.f_frsize >= bytes + (eighth < kRoomLeft ? eighth : kRoomLeft);
}

// freed <= acked <= head <= limit <= freed + capacity, on a ring that may be in use: what grows is read in the order in
// which it cannot seem to contradict itself.
bool is_consistent(const RingHeader& header, u64 capacity) noexcept {
    const u64 early_limit = header.limit.load(std::memory_order_acquire);
    const u64 freed = header.freed.load(std::memory_order_acquire);
    const u64 acked = header.acked.load(std::memory_order_acquire);
    const u64 head = header.head.load(std::memory_order_acquire);
    const u64 limit = header.limit.load(std::memory_order_acquire);
    return freed <= acked && acked <= head && head <= limit &&
           (early_limit < freed || early_limit - freed <= capacity) && (freed | acked | head | limit) % 8 == 0;
}

// Does the kernel back and take memory as it says? An emulator (qemu-user among them) answers 0 to any advice and does
// nothing. Leaves all of it backed, and zero.
bool memory_obeys(char* data, u64 page, u64 bytes) noexcept {
    if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0) return false;
    *data = 1;
    if (madvise(data, page, MADV_REMOVE) == 0 && *static_cast<volatile char*>(data) == 0)
        return madvise(data, page, MADV_POPULATE_WRITE) == 0;
    *data = 0;
    return false;
}

// Keeps errno as it is: the program is in the middle of a call.
class KeepErrno {
public:
    KeepErrno() noexcept : kept_(errno) {}
    ~KeepErrno() { errno = kept_; }
    KeepErrno(const KeepErrno&) = delete;
    KeepErrno& operator=(const KeepErrno&) = delete;

private:
    int kept_;
};

constexpr std::size_t kMaxPath = 512;

bool unfinished_name(const char* path, char (&name)[kMaxPath]) noexcept {
    const std::size_t length = strlen(path);
    if (length + 2 > sizeof name) return false;
    memcpy(name, path, length);
    memcpy(name + length, "~", 2);
    return true;
}

}  // namespace

u64 monotonic_ns() noexcept {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000ull + static_cast<u64>(now.tv_nsec);
}

int Ring::create(const char* path, u64 bytes) noexcept {
    const u64 page = static_cast<u64>(sysconf(_SC_PAGESIZE));
    const u64 header_bytes = page > kRingHeaderBytes ? page : kRingHeaderBytes;
    if (bytes > kLargestRing) return EINVAL;
    // Four pages at least: the window moves by whole pages, and a quarter must always come free.
    const u64 capacity = round_up_to_power_of_two(bytes, 4 * page > kSmallestRing ? 4 * page : kSmallestRing);
    const u64 first_bytes = capacity < kGrowthBytes || kGrowthBytes < page ? capacity : kGrowthBytes;
    char unfinished[kMaxPath];
    if (!unfinished_name(path, unfinished)) return ENAMETOOLONG;
    if (exceeds_file_limit(header_bytes + capacity)) return EFBIG;
    const int fd = ::open(unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    int error = is_too_small(fd, header_bytes + capacity) ? ENOSPC : 0;
    if (error == 0 && ftruncate(fd, static_cast<off_t>(header_bytes + capacity)) != 0) error = errno;
    if (error == 0) error = allocate(fd, 0, header_bytes + first_bytes);
    if (error == 0) {
        alignas(RingHeader) char first[kRingHeaderBytes] = {};
        auto* fresh = reinterpret_cast<RingHeader*>(first);
        memcpy(fresh->magic, kRingMagic, sizeof kRingMagic);
        fresh->version = kRingVersion;
        fresh->header_bytes = static_cast<u32>(header_bytes);
        fresh->capacity = capacity;
        fresh->page_bytes = static_cast<u32>(page);
        fresh->uid = getuid();
        fresh->rank = fresh->local_rank = fresh->world_size = fresh->group_rank = -1;
        if (pwrite(fd, first, sizeof first, 0) != static_cast<ssize_t>(sizeof first)) error = errno != 0 ? errno : EIO;
    }
    if (error == 0) error = map(fd, header_bytes, capacity, true);
    if (error == 0) {
        memcpy(path_, path, strlen(path) + 1);
        header->grows = memory_obeys(data, page, first_bytes) ? 1 : 0;
        if (header->grows == 0) error = allocate(fd, header_bytes, header_bytes + capacity);
        header->limit.store(first_bytes, std::memory_order_relaxed);  // also where all is backed: moving it wakes
        header->locked = error == 0 && hold_lock(unfinished) ? 1 : 0;
        if (error != 0) unmap();
    }
    ::close(fd);
    if (error != 0) unlink(unfinished);
    return error;
}

// Takes the lock on a description of its own, whose only user is a mapping; and makes sure that it holds.
bool Ring::hold_lock(const char* unfinished) noexcept {
    const int fd = ::open(unfinished, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        void* page = mmap(nullptr, page_, PROT_READ, MAP_SHARED, fd, 0);
        if (page != MAP_FAILED && madvise(page, page_, MADV_DONTFORK) == 0)
            lock_ = page;
        else if (page != MAP_FAILED)
            munmap(page, page_);
    }
    ::close(fd);
    bool unknown = false;
    return lock_ != nullptr && has_owner(unfinished, unknown) && !unknown;
}

bool Ring::has_owner(const char* path, bool& unknown) noexcept {
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    unknown = fd < 0;
    if (fd < 0) return false;
    const bool held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    unknown = held && errno != EWOULDBLOCK;
    ::close(fd);
    return held && !unknown;
}

int Ring::publish(const char* path) noexcept {
    char unfinished[kMaxPath];
    if (!unfinished_name(path, unfinished)) return ENAMETOOLONG;
    return rename(unfinished, path) == 0 ? 0 : errno;
}

int Ring::open(const char* path, bool writable) noexcept {
    // O_NONBLOCK: a FIFO with the name of a ring must not hold the agent up.
    const int fd = ::open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return errno;
    int error = 0;
    struct stat info;
    RingHeader found;
    if (fstat(fd, &info) != 0) {
        error = errno;
    } else if (!S_ISREG(info.st_mode)) {
        error = EPROTO;
    } else if (info.st_uid != geteuid()) {
        error = EPERM;
    } else if (pread(fd, static_cast<void*>(&found), sizeof found, 0) != static_cast<ssize_t>(sizeof found) ||
               memcmp(found.magic, kRingMagic, sizeof kRingMagic) != 0 || found.version != kRingVersion) {
        error = EPROTO;
    } else if (found.capacity < kSmallestRing || (found.capacity & (found.capacity - 1)) != 0 ||
               found.capacity > kLargestRing || found.header_bytes < sizeof(RingHeader) ||
               found.header_bytes % static_cast<u32>(sysconf(_SC_PAGESIZE)) != 0 ||
               static_cast<u64>(info.st_size) != found.header_bytes + found.capacity) {
        error = EINVAL;
    } else {
        error = map(fd, found.header_bytes, found.capacity, writable);
        if (error == 0 && !is_consistent(*header, found.capacity)) {
            unmap();
            error = EINVAL;
        }
    }
    ::close(fd);
    return error;
}

int Ring::map(int fd, u64 header_bytes, u64 capacity, bool writable) noexcept {
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void* space =
        mmap(nullptr, header_bytes + 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return errno;
    char* base = static_cast<char*>(space);
    const struct {
        u64 place, bytes, file_offset;
    } parts[] = {{0, header_bytes, 0},
                 {header_bytes, capacity, header_bytes},
                 {header_bytes + capacity, capacity, header_bytes}};
    for (const auto& part : parts) {
        if (mmap(base + part.place, part.bytes, protection, MAP_SHARED | MAP_FIXED, fd,
                 static_cast<off_t>(part.file_offset)) == MAP_FAILED) {
            const int error = errno;
            munmap(space, header_bytes + 2 * capacity);
            return error;
        }
    }
    header = reinterpret_cast<RingHeader*>(base);
    data = base + header_bytes;
    mask_ = capacity - 1;
    mapped_bytes_ = header_bytes + 2 * capacity;
    page_ = static_cast<u64>(sysconf(_SC_PAGESIZE));
    return 0;
}

void Ring::unmap() noexcept {
    if (header == nullptr) return;
    munmap(static_cast<void*>(header), mapped_bytes_);
    if (lock_ != nullptr) munmap(lock_, page_);
    header = nullptr;
    data = nullptr;
    lock_ = nullptr;
}

// Where writers might come to if there is memory for it. A page is theirs again when all of it is free.
u64 Ring::window_end() const noexcept {
    return (header->freed.load(std::memory_order_acquire) & ~(page_ - 1)) + capacity();
}

// Has the kernel back [from, from + bytes), which nobody else uses. An error where there is no memory, not a SIGBUS.
bool Ring::back(u64 from, u64 bytes) noexcept {
    if (header->grows == 0) return true;
    const u64 held = from + bytes - header->freed.load(std::memory_order_relaxed);
    if (held > kAssuredBytes && !leaves_room(path_, bytes)) return false;
    int result;
    u32 tries = 0;
    do {
        result = madvise(data + (from & mask_), bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN) && ++tries < 100);
    return result == 0;
}

// True when `length` bytes fit below `limit` now, which it moves when need be. False: full, or no memory.
bool Ring::make_room(u64 length) noexcept {
    const KeepErrno keep;
    for (bool modest = false;;) {
        const u64 head = header->head.load(std::memory_order_relaxed);
        u64 limit = header->limit.load(std::memory_order_acquire);
        if (head + length <= limit) return true;
        const u64 end = window_end();
        const u64 needed = (head + length + page_ - 1) & ~(page_ - 1);
        // A backlog grows by a quarter of itself: asking costs microseconds, however much is asked for.
        const u64 backlog = (head - header->freed.load(std::memory_order_relaxed)) / 4 & ~(page_ - 1);
        const u64 more = !modest && backlog > kGrowthBytes && backlog < capacity() ? backlog : kGrowthBytes;
        u64 wanted = limit + more > needed ? limit + more : needed;
        if (wanted > end) wanted = end;
        if (wanted < needed || wanted <= limit || wanted - limit > capacity()) {
            wake_reader();
            return false;
        }
        if (!back(limit, wanted - limit)) {
            if (more > kGrowthBytes) {
                modest = true;
                continue;
            }
            header->retry_at.store(monotonic_ns() + kRetryNs, std::memory_order_relaxed);
            return false;
        }
        header->limit.compare_exchange_strong(limit, wanted, std::memory_order_acq_rel);
        wake_reader();
    }
}

void Ring::wake_reader() noexcept {
    if (header->asleep.load(std::memory_order_relaxed) != 0 &&
        header->asleep.exchange(0, std::memory_order_relaxed) != 0)
        utimensat(AT_FDCWD, path_, nullptr, AT_SYMLINK_NOFOLLOW);
}

// Full, or dropping because it was full. See "Full" in the header.
char* Ring::reserve_slow(u32 length, u8 kind) noexcept {
    const u64 quarter = capacity() / 4;
    const auto room = [&]() noexcept -> i64 {
        return static_cast<i64>(window_end() - header->head.load(std::memory_order_relaxed));
    };
    const auto lose = [&]() noexcept -> char* {
        header->lost[kind % kKindSlots].fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    };
    if (header->dropping.load(std::memory_order_relaxed) != 0) {
        if (room() < static_cast<i64>(quarter)) return lose();
        const u64 retry_at = header->retry_at.load(std::memory_order_relaxed);
        if (retry_at != 0 && monotonic_ns() < retry_at) return lose();
        // One thread leaves the dropping state and tells the gaps; the others go on losing until it has.
        u32 expected = 1;
        if (!header->dropping.compare_exchange_strong(expected, 2, std::memory_order_acq_rel)) return lose();
        const bool told = make_room(kKindSlots * sizeof(EventRecord) + length) && write_gaps();
        header->dropping.store(told ? 0 : 1, std::memory_order_release);
        return told ? reserve(length, kind) : lose();
    }
    if (make_room(length)) return reserve(length, kind);
    u64 until = header->wait_until.load(std::memory_order_relaxed);
    const u64 head = header->head.load(std::memory_order_relaxed);
    if (until == 0 || head - header->wait_mark.load(std::memory_order_relaxed) >= quarter) {
        const u64 mine = monotonic_ns() + wait_ns;
        if (header->wait_until.compare_exchange_strong(until, mine, std::memory_order_relaxed)) {
            header->wait_mark.store(head, std::memory_order_relaxed);
            if (wait_ns != 0) header->waits.fetch_add(1, std::memory_order_relaxed);
            until = mine;
        }
    }
    while (!make_room(length)) {
        if (header->dropping.load(std::memory_order_relaxed) != 0) return lose();
        if (monotonic_ns() >= until) {
            u32 expected = 0;
            if (header->dropping.compare_exchange_strong(expected, 1, std::memory_order_acq_rel))
                header->drop_from.store(header->head.load(std::memory_order_relaxed), std::memory_order_relaxed);
            return lose();
        }
        const timespec nap = {0, static_cast<long>(kPollNs)};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    }
    return reserve(length, kind);
}

bool Ring::write_gaps() noexcept {
    for (u32 kind = 0; kind < kKindSlots; ++kind) {
        const u64 lost = header->lost[kind].load(std::memory_order_relaxed);
        const u64 told = header->reported[kind].load(std::memory_order_relaxed);
        if (lost == told) continue;
        u64 at = header->head.load(std::memory_order_relaxed);
        do {
            if (at + sizeof(EventRecord) > header->limit.load(std::memory_order_acquire)) return false;
        } while (!header->head.compare_exchange_weak(at, at + sizeof(EventRecord), std::memory_order_relaxed));
        char* place = data + (at & mask_);
        EventRecord gap = {};
        gap.ts = monotonic_ns();
        gap.size = static_cast<i64>(lost - told);
        gap.used = gap.total = kUnknown;
        gap.aux = kind;
        gap.ptr = header->drop_from.load(std::memory_order_relaxed);
        gap.attr = at;
        gap.device = kNoDevice;
        gap.step = header->step.load(std::memory_order_relaxed);
        memcpy(place + sizeof(RecordHeader), reinterpret_cast<const char*>(&gap) + sizeof(RecordHeader),
               sizeof gap - sizeof(RecordHeader));
        // In this order: a process killed in between has told the loss once too often, not never.
        commit(place, sizeof gap, static_cast<u8>(Kind::GAP), 0);
        header->reported[kind].store(lost, std::memory_order_relaxed);
    }
    return true;
}

u64 Ring::next_committed(u64 offset) const noexcept {
    const u64 head = header->head.load(std::memory_order_acquire);
    if (offset > head || head - offset > capacity()) return head;
    for (; offset < head; offset += 8) {
        u64 at = offset;
        u32 links = 0;
        while (at < head && links < kChainLinks) {
            const RecordHeader record = peek(at);
            if (!is_valid(record) || record.length > head - at) break;
            at += record.length;
            ++links;
        }
        if (links == kChainLinks || (links > 0 && (at == head || peek(at).length == 0))) return offset;
    }
    return head;
}

void Ring::release(u64 offset) noexcept {
    const u64 head = header->head.load(std::memory_order_relaxed);
    const u64 freed = header->freed.load(std::memory_order_relaxed);
    u64 acked = header->acked.load(std::memory_order_relaxed);
    if (offset > acked && offset <= head) {
        acked = offset;
        header->acked.store(acked, std::memory_order_release);
    }
    // The compiler must not begin to zero before that store: killed in between, `acked` would name a record of zeros.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (acked <= freed || acked - freed > capacity()) return;
    // A busy ring keeps its pages: at 16 MiB and a batch every 50 ms, that is from 50,000 events a second on. New pages
    // cost a writer some 10 ns a record, on virtual machines ten times that.
    clear(freed, acked, acked - freed <= capacity() / 64);
    header->freed.store(acked, std::memory_order_release);
}

void Ring::recover() noexcept {
    const u64 freed = header->freed.load(std::memory_order_relaxed);
    const u64 acked = header->acked.load(std::memory_order_relaxed);
    if (acked <= freed || acked - freed > capacity()) return;
    clear(freed, acked, true);  // some of it may be holes by now: zeroing these would ask for memory
    header->freed.store(acked, std::memory_order_release);
}

// Makes [from, to) zeros. give_back: whole pages become holes, the page that `from` lies in among them: no writer has
// it before all of it is free.
void Ring::clear(u64 from, u64 to, bool give_back) noexcept {
    const u64 first = from & ~(page_ - 1);
    const u64 last = to & ~(page_ - 1);
    if (give_back && header->grows != 0 && last > first && last - first <= capacity() &&
        madvise(data + (first & mask_), last - first, MADV_REMOVE) == 0)
        from = last;
    memset(data + (from & mask_), 0, to - from);
}

}  // namespace memscope
