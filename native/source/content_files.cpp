#include "source/content_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hook/recorder.h"
#include "hook/settings.h"

namespace memscope {
namespace {

constexpr u64 kLeftFree = u64{64} << 20;  // bytes, for what else is written there: the run itself
std::atomic<bool> g_failed{false};

void fail(int error) noexcept {
    g_failed.store(true, std::memory_order_relaxed);
    if (error == ENOSPC || error == EDQUOT)
        report_blind("watch", "no room for files of content beside the run: from then on there are checksums alone");
    else
        report_blind("watch", "files of content cannot be written in the output directory: there are checksums alone");
}

// The directory of this process, open; -1 and errno.
int open_directory() noexcept {
    memscope_stats stats;
    memscope_get_stats(&stats);
    char path[sizeof g_settings.output_directory + 40];
    mkdir(g_settings.output_directory, 0750);
    snprintf(path, sizeof path, "%s/watch_content_%016llx", g_settings.output_directory, stats.ring_id);
    if (mkdir(path, 0750) != 0 && errno != EEXIST) return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool has_room(int directory, u64 bytes) noexcept {
    struct statvfs disk;
    return fstatvfs(directory, &disk) != 0 || u64{disk.f_bavail} * disk.f_frsize >= bytes + kLeftFree;
}

}  // namespace

bool are_contents_written() noexcept {
    return g_settings.watch_content.load(std::memory_order_relaxed) != 0 && !g_failed.load(std::memory_order_relaxed);
}

ContentFile::ContentFile(const char* name, u64 bytes) noexcept {
    snprintf(name_, sizeof name_, "%.*s.bin", static_cast<int>(kMostName), name);
    directory_ = open_directory();
    if (directory_ >= 0 && !has_room(directory_, bytes)) {
        fail(ENOSPC);
        return;
    }
    if (directory_ >= 0) file_ = openat(directory_, name_, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file_ < 0) fail(errno);
}

ContentFile::~ContentFile() {
    if (file_ >= 0 && close(file_) != 0) {  // a network's file system may say only now that there was no room
        fail(errno);
        is_whole_ = false;
    }
    if (file_ >= 0 && !is_whole_) unlinkat(directory_, name_, 0);
    if (directory_ >= 0) close(directory_);
}

void ContentFile::add(const void* bytes, u64 count) noexcept {
    const auto* at = static_cast<const char*>(bytes);
    while (file_ >= 0 && count > 0) {
        const ssize_t written = write(file_, at, count);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            const int error = written < 0 ? errno : ENOSPC;
            close(file_);
            unlinkat(directory_, name_, 0);
            file_ = -1;
            return fail(error);
        }
        at += written;
        count -= static_cast<u64>(written);
    }
}

}  // namespace memscope
