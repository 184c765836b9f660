// A directory below /dev/shm for one test or benchmark program. The program removes it at its end; one that aborts or
// is killed cannot, so the next program to make a directory of that prefix does.
//
// Whose directory is in use is told by a lock on it (flock), which goes with the process that made it and its forked
// children, however they end; a pid would mean nothing to a container beside ours with the same /dev/shm.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace own {

inline constexpr const char* kShared = "/dev/shm";

// A descriptor that holds the lock, or -1: it is in use, gone, or not ours.
inline int lock_directory(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return -1;
    struct stat here = {}, there = {};
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &here) == 0 && stat(path.c_str(), &there) == 0 &&
        here.st_ino == there.st_ino && here.st_uid == geteuid())
        return fd;
    close(fd);
    return -1;
}

inline void remove_directory(const std::string& path) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
}

inline void remove_abandoned(const std::string& prefix) {
    DIR* const entries = opendir(kShared);
    if (entries == nullptr) return;
    while (const dirent* entry = readdir(entries)) {
        const std::string name = entry->d_name, path = std::string(kShared) + "/" + name;
        if (name.compare(0, prefix.size(), prefix) != 0) continue;
        const int fd = lock_directory(path);
        if (fd < 0) continue;
        remove_directory(path);
        close(fd);
    }
    closedir(entries);
}

// Makes /dev/shm/<prefix>XXXXXX, locked for as long as this process lives.
inline std::string make_directory(const std::string& prefix) {
    remove_abandoned(prefix);
    for (;;) {  // somebody who looks for abandoned ones may meet ours before its lock
        std::string path = std::string(kShared) + "/" + prefix + "XXXXXX";
        if (mkdtemp(path.data()) == nullptr) return "";
        if (lock_directory(path) >= 0) return path;
    }
}

}  // namespace own
