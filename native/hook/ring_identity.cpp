#include "hook/ring_identity.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hook/identity.h"
#include "record/process.h"

namespace memscope {
namespace {

u64 process_start(u32 pid) noexcept {
    ProcessStat stat;
    return read_process_stat(pid, stat) ? stat.start : 0;
}

u32 parent_of(u32 pid) noexcept {
    ProcessStat stat;
    return read_process_stat(pid, stat) ? stat.parent : 0;
}

// A ring's id ends in its process's pid, so that its relatives find it among thousands by the name of its file.
constexpr u64 kPidInId = 0xFFFF;

}  // namespace

void copy_text(char* to, std::size_t size, const char* from) noexcept {
    if (from == nullptr) from = "";
    const std::size_t bytes = strnlen(from, size - 1);
    memcpy(to, from, bytes);
    to[bytes] = 0;
}

u64 new_ring_id() noexcept {
    u64 random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = combine64(monotonic_ns(), static_cast<u64>(getpid()));
    return nonzero((random & ~kPidInId) | (static_cast<u64>(getpid()) & kPidInId));
}

void fill_identity(RingHeader& header, u64 ring_id, const char* session) noexcept {
    header.ring_id = ring_id;
    header.pid = static_cast<u32>(getpid());
    header.ppid = static_cast<u32>(getppid());
    header.process_start = process_start(header.pid);
    header.pid_namespace = pid_namespace();
    timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    header.created_ns = monotonic_ns();
    header.wall_offset_ns =
        static_cast<i64>(wall.tv_sec) * 1'000'000'000 + wall.tv_nsec - static_cast<i64>(header.created_ns);
    const Identity identity = identity_of_environment();
    header.rank = identity.rank;
    header.local_rank = identity.local_rank;
    header.world_size = identity.world_size;
    header.group_rank = identity.group_rank;
    header.attempt = identity.attempt;
    copy_text(header.role, sizeof header.role, getenv("ROLE_NAME"));
    const char* base = strrchr(session, '/');
    copy_text(header.session, sizeof header.session, base == nullptr ? session : base + 1);
    if (gethostname(header.host, sizeof header.host - 1) != 0) header.host[0] = 0;
    const ssize_t bytes = readlink("/proc/self/exe", header.program, sizeof header.program - 1);
    header.program[bytes > 0 ? bytes : 0] = 0;
    read_command(header.command, sizeof header.command);
}

const RingHeader* find_parent(RingHeader& own, const char* session) noexcept {
    constexpr int kAncestors = 8;
    u32 ancestors[kAncestors];
    u32 pid = own.ppid;
    for (u32& ancestor : ancestors) {
        ancestor = pid;
        pid = pid > 1 ? parent_of(pid) : 0;
    }
    DIR* directory = opendir(session);
    if (directory == nullptr) return nullptr;
    const RingHeader* parent = nullptr;
    int nearest = kAncestors;
    while (const dirent* entry = readdir(directory)) {
        const std::size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".ring") != 0) continue;
        const u64 end_of_pid = strtoull(entry->d_name, nullptr, 16) & kPidInId;
        bool may_be_related = end_of_pid == (own.pid & kPidInId);
        for (const u32 ancestor : ancestors) may_be_related |= end_of_pid == (ancestor & kPidInId);
        if (!may_be_related) continue;
        char path[600];
        snprintf(path, sizeof path, "%.255s/%.300s", session, entry->d_name);
        const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        struct stat info;  // a page behind the end of a file is a SIGBUS, of the program
        const bool is_whole = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= kRingHeaderBytes;
        void* page =
            !is_whole ? MAP_FAILED : mmap(nullptr, kRingHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (page == MAP_FAILED) continue;
        auto* other = static_cast<RingHeader*>(page);
        bool keep = false;
        if (memcmp(other->magic, kRingMagic, sizeof kRingMagic) == 0) {
            if (other->pid == own.pid && other->process_start == own.process_start) {
                other->closed.store(1, std::memory_order_release);
            } else if (other->rank == own.rank && other->attempt == own.attempt) {
                for (int distance = 0; distance < nearest; ++distance) {
                    if (other->pid != ancestors[distance] || other->process_start != process_start(other->pid))
                        continue;
                    nearest = distance;
                    own.parent_ring_id = other->ring_id;
                    parent = other;
                    keep = true;  // one page, for the life of the process
                }
            }
        }
        if (!keep) munmap(page, kRingHeaderBytes);
    }
    closedir(directory);
    return parent;
}

}  // namespace memscope
