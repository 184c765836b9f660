#include "hook/unwatched.h"

#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "record/process.h"

namespace memscope {

void leave_note(const char* session_directory, int error) noexcept {
    const int kept = errno;
    if (session_directory[0] != 0 && (access(session_directory, F_OK) == 0 || errno != ENOENT)) {
        char program[256];
        const ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
        program[bytes > 0 ? bytes : 0] = 0;
        const char* slash = strrchr(program, '/');
        char name[64];  // short: a short target needs no block of the file system's
        snprintf(name, sizeof name, "%s", slash == nullptr ? "?" : slash + 1);
        const u32 pid = static_cast<u32>(getpid());
        ProcessStat stat = {};
        read_process_stat(pid, stat);
        for (const char* separator : {"/", "."}) {
            char path[512];
            snprintf(path, sizeof path, "%.255s%sunwatched-%u-%llu-%d", session_directory, separator, pid,
                     static_cast<unsigned long long>(stat.start), error);
            if (symlink(name, path) == 0 || errno == EEXIST) break;
        }
    }
    errno = kept;
}

}  // namespace memscope
