#include "record/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace memscope {
namespace {

constexpr u64 kPollNs = 50'000;

u64 round_up_to_power_of_two(u64 bytes, u64 at_least) noexcept {
    u64 capacity = at_least;
    while (capacity < bytes) capacity <<= 1;
    return capacity;
}

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
    const u64 capacity = round_up_to_power_of_two(bytes, page > 65536 ? page : 65536);
    char unfinished[kMaxPath];
    if (!unfinished_name(path, unfinished)) return ENAMETOOLONG;
    const int fd = ::open(unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    int error = 0;
    if (ftruncate(fd, static_cast<off_t>(header_bytes + capacity)) != 0) error = errno;
    // Only the header is allocated for certain; a write into a hole of a full tmpfs would be a SIGBUS, so the
    // data is reserved too. posix_fallocate returns the error instead of setting errno.
    if (error == 0) error = posix_fallocate(fd, 0, static_cast<off_t>(header_bytes + capacity));
    if (error == 0) {
        char first[kRingHeaderBytes] = {};
        auto* fresh = reinterpret_cast<RingHeader*>(first);
        memcpy(fresh->magic, kRingMagic, sizeof kRingMagic);
        fresh->version = 1;
        fresh->header_bytes = static_cast<u32>(header_bytes);
        fresh->capacity = capacity;
        fresh->page_bytes = static_cast<u32>(page);
        fresh->uid = getuid();
        fresh->rank = fresh->local_rank = fresh->world_size = fresh->group_rank = -1;
        if (pwrite(fd, first, sizeof first, 0) != static_cast<ssize_t>(sizeof first)) error = errno != 0 ? errno : EIO;
    }
    if (error == 0) error = map(fd, capacity, true);
    ::close(fd);
    if (error != 0) unlink(unfinished);
    return error;
}

int Ring::publish(const char* path) noexcept {
    char unfinished[kMaxPath];
    if (!unfinished_name(path, unfinished)) return ENAMETOOLONG;
    return rename(unfinished, path) == 0 ? 0 : errno;
}

int Ring::open(const char* path, bool writable) noexcept {
    const int fd = ::open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
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
               memcmp(found.magic, kRingMagic, sizeof kRingMagic) != 0 || found.version != 1) {
        error = EPROTO;
    } else if (found.capacity < 65536 || (found.capacity & (found.capacity - 1)) != 0 ||
               found.capacity > (1ull << 40) || found.header_bytes < sizeof(RingHeader) ||
               found.header_bytes % static_cast<u32>(sysconf(_SC_PAGESIZE)) != 0 ||
               static_cast<u64>(info.st_size) != found.header_bytes + found.capacity) {
        error = EINVAL;
    } else {
        error = map(fd, found.capacity, writable);
    }
    ::close(fd);
    return error;
}

int Ring::map(int fd, u64 capacity, bool writable) noexcept {
    RingHeader sizes;
    if (pread(fd, static_cast<void*>(&sizes), sizeof sizes, 0) != static_cast<ssize_t>(sizeof sizes)) return EIO;
    const u64 header_bytes = sizes.header_bytes;
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
    return 0;
}

void Ring::unmap() noexcept {
    if (header == nullptr) return;
    munmap(static_cast<void*>(header), header->header_bytes + 2 * (mask_ + 1));
    header = nullptr;
    data = nullptr;
}

// Full, or dropping because it was full. See "Full" in the header.
char* Ring::reserve_slow(u32 length, u8 kind) noexcept {
    const auto room = [&] {
        return mask_ + 1 -
               (header->head.load(std::memory_order_relaxed) - header->freed.load(std::memory_order_acquire));
    };
    const auto lose = [&]() -> char* {
        header->lost[kind % kKindSlots].fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    };
    if (header->dropping.load(std::memory_order_relaxed) != 0) {
        if (room() < (mask_ + 1) / 4) return lose();
        // One thread leaves the dropping state and tells the gaps; the others go on losing until it has.
        u32 expected = 1;
        if (!header->dropping.compare_exchange_strong(expected, 2, std::memory_order_acq_rel)) return lose();
        header->dropping.store(write_gaps() ? 0 : 1, std::memory_order_release);
        return reserve(length, kind);
    }
    const u64 give_up = monotonic_ns() + wait_ns;
    if (wait_ns != 0) header->waits.fetch_add(1, std::memory_order_relaxed);
    while (room() < length + kMaxRecordBytes) {
        if (wait_ns == 0 || monotonic_ns() >= give_up) {
            u32 expected = 0;
            header->dropping.compare_exchange_strong(expected, 1, std::memory_order_acq_rel);
            return lose();
        }
        if (header->dropping.load(std::memory_order_relaxed) != 0) return lose();
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
            if (at + sizeof(EventRecord) - header->freed.load(std::memory_order_acquire) > mask_ + 1) return false;
        } while (!header->head.compare_exchange_weak(at, at + sizeof(EventRecord), std::memory_order_relaxed));
        char* place = data + (at & mask_);
        EventRecord gap = {};
        gap.ts = monotonic_ns();
        gap.size = static_cast<i64>(lost - told);
        gap.used = gap.total = kUnknown;
        gap.aux = kind;
        gap.ptr = gap.attr = at;
        gap.device = kNoDevice;
        gap.step = header->step.load(std::memory_order_relaxed);
        memcpy(place + sizeof(RecordHeader), reinterpret_cast<const char*>(&gap) + sizeof(RecordHeader),
               sizeof gap - sizeof(RecordHeader));
        header->reported[kind].store(lost, std::memory_order_relaxed);
        commit(place, sizeof gap, static_cast<u8>(Kind::GAP), 0);
    }
    return true;
}

u64 Ring::next_committed(u64 offset) const noexcept {
    const u64 head = header->head.load(std::memory_order_acquire);
    for (; offset < head; offset += 8) {
        // Bytes inside a hole may imitate a header; a whole chain of headers up to the next hole or the head
        // does not happen by chance.
        u64 at = offset;
        u32 links = 0;
        while (at < head) {
            const RecordHeader record = peek(at);
            if (!is_valid(record) || at + record.length > head) break;
            at += record.length;
            ++links;
        }
        if (links == 0) continue;
        if (at == head || peek(at).length == 0) return offset;
    }
    return head;
}

void Ring::release(u64 offset) noexcept {
    header->acked.store(offset, std::memory_order_release);
    const u64 from = header->freed.load(std::memory_order_relaxed);
    if (offset <= from) return;
    memset(data + (from & mask_), 0, offset - from);
    header->freed.store(offset, std::memory_order_release);
}

}  // namespace memscope
