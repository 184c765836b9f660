#include "record/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace memscope {

u64 pid_namespace() noexcept {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<u64>(info.st_ino) : 0;
}

bool read_process_stat(u32 pid, ProcessStat& out) noexcept {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = 0;
    const char* at = strrchr(text, ')');  // the name may itself hold spaces and parentheses
    if (at == nullptr || at[1] != ' ' || at[2] == 0 || at[3] != ' ') return false;
    out.state = at[2];
    out.parent = static_cast<u32>(strtoul(at + 4, nullptr, 10));
    for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
    if (at == nullptr) return false;
    out.start = strtoull(at + 1, nullptr, 10);
    return true;
}

}  // namespace memscope
