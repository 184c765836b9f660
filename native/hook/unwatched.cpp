#include "hook/unwatched.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "record/process.h"

namespace memscope {

namespace {

// To who owns the session. Never waits.
bool send_note(const char* session_directory, const char* note, int bytes) noexcept {
    const char* slash = strrchr(session_directory, '/');
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    char* const abstract = address.sun_path + 1;  // behind a zero
    const int length =
        snprintf(abstract, sizeof address.sun_path - 1, "%.80s/unwatched", slash == nullptr ? "" : slash + 1);
    const int file = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0) return false;
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
    const bool sent = sendto(file, note, static_cast<std::size_t>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address), size) == bytes;
    close(file);
    return sent;
}

}  // namespace

bool leave_note(const char* session_directory, int error) noexcept {
    if (session_directory[0] == 0) return false;
    const int kept = errno;
    char program[256];
    const ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    program[bytes > 0 ? bytes : 0] = 0;
    const char* slash = strrchr(program, '/');
    char name[64];  // short: a short target needs no block of the file system's
    snprintf(name, sizeof name, "%s", slash == nullptr ? "?" : slash + 1);
    const u32 pid = static_cast<u32>(getpid());
    ProcessStat stat = {};
    read_process_stat(pid, stat);
    char note[160];
    const int length =
        snprintf(note, sizeof note, "%u-%llu-%d", pid, static_cast<unsigned long long>(stat.start), error);
    bool is_left = false;
    if (access(session_directory, F_OK) == 0 || errno != ENOENT) {
        for (const char* separator : {"/", "."}) {
            char path[512];
            snprintf(path, sizeof path, "%.255s%sunwatched-%s", session_directory, separator, note);
            is_left = symlink(name, path) == 0 || errno == EEXIST;
            if (is_left) break;
        }
    }
    if (!is_left) {
        const int more = snprintf(note + length, sizeof note - static_cast<std::size_t>(length), "-%s", name);
        is_left = send_note(session_directory, note, length + more);
    }
    errno = kept;
    return is_left;
}

}  // namespace memscope
