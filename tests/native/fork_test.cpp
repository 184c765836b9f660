// A fork in each state that the library may be in, also one that another thread has just brought about. The child
// records into a ring of its own, or nothing where there is nothing to record into; it never waits for a thread that is
// not there.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
void early_allocate(void* ptr, std::size_t bytes);
}

namespace {

void* const kBlock = reinterpret_cast<void*>(0x1000);

// Stops whoever comes by, until it is opened.
struct Gate {
    std::atomic<bool> is_shut{false}, is_reached{false};

    void pass() {
        if (!is_shut) return;
        is_reached = true;
        while (is_shut) usleep(100);
    }
};
Gate g_at_random;   // a ring is being made: recorder.cpp, new_ring_id
Gate g_at_objects;  // the loaded objects are being looked through: patch.cpp, count_loads
__thread pid_t* t_fork_at_clock = nullptr;

}  // namespace

// What the hook library calls of libc, as a program may define it: its own functions come first.
extern "C" __attribute__((visibility("default"))) ssize_t getrandom(void* out, size_t bytes, unsigned flags) {
    g_at_random.pass();
    return syscall(SYS_getrandom, out, bytes, flags);
}

extern "C" __attribute__((visibility("default"))) int dl_iterate_phdr(int (*visit)(dl_phdr_info*, size_t, void*),
                                                                      void* context) {
    static const auto real = reinterpret_cast<decltype(&dl_iterate_phdr)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
    g_at_objects.pass();
    return real(visit, context);
}

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* out) noexcept {
    if (pid_t* const child = t_fork_at_clock) {
        t_fork_at_clock = nullptr;
        *child = fork();
    }
    return static_cast<int>(syscall(SYS_clock_gettime, clock, out));
}

namespace {

// What a child does, within a time that is long enough for everything but waiting for nobody. Returns the child's pid.
template <typename Act>
pid_t in_child(const Act& act) {
    const pid_t child = fork();
    if (child == 0) {
        g_at_random.is_shut = g_at_objects.is_shut = false;
        alarm(20);
        _exit(act() ? 0 : 1);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    return child;
}

bool allocate() {
    early_allocate(kBlock, 32);
    return true;
}

bool records() {
    memscope_stats stats;
    memscope_get_stats(&stats);
    return stats.recording != 0;
}

std::size_t rings_of(pid_t process) {
    std::size_t count = 0;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        count += ring.header->pid == static_cast<u32>(process);
        ring.unmap();
    }
    return count;
}

}  // namespace

// In this order: there is one recorder per process.

CASE(while_nothing_is_watched) {
    in_child(allocate);
    CHECK_EQUAL(rings().size(), 0u);
}

CASE(after_recording_has_failed) {
    CHECK_EQUAL(memscope_set_session((session_directory() + "/gone/session").c_str()), 0);
    memscope_configure("devices=cpu");
    memscope_install_hooks();
    memscope_start();
    allocate();
    memscope_stats stats;
    memscope_get_stats(&stats);
    CHECK_EQUAL(stats.error, ENOENT);
    in_child([] { return allocate() && !records(); });
    CHECK_EQUAL(rings().size(), 0u);
}

CASE(while_blocks_are_only_remembered) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=1");
    memscope_remember();
    early_allocate(reinterpret_cast<void*>(0x2000), 64);
    const pid_t child = in_child([] {
        memscope_start();
        return allocate();
    });
    const auto memory = memory_events(static_cast<u32>(child));  // the remembered block is its parent's
    CHECK_EQUAL(memory.size(), 1u);
    CHECK_EQUAL(memory[0].record.size, 32);
    CHECK_EQUAL(rings_of(getpid()), 0u);
}

CASE(while_another_thread_makes_the_ring) {
    g_at_random.is_shut = true;
    std::thread making(memscope_start);  // for the block that is remembered
    while (!g_at_random.is_reached) usleep(100);
    const pid_t child = in_child(allocate);
    g_at_random.is_shut = false;
    making.join();
    CHECK_EQUAL(memory_events(static_cast<u32>(child)).size(), 1u);
    CHECK_EQUAL(rings_of(child), 1u);
    CHECK_EQUAL(rings_of(getpid()), 1u);
}

CASE(while_another_thread_looks_through_the_objects) {
    g_at_objects.is_shut = true;
    std::thread looking([] { memscope_install_hooks(); });
    while (!g_at_objects.is_reached) usleep(100);
    const pid_t child = in_child([] {
        void* const library = dlopen(LATE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return false;
        const auto late = reinterpret_cast<void (*)(void*, std::size_t)>(dlsym(library, "late_allocate"));
        late(kBlock, 48);
        memscope_remove_hooks();
        late(kBlock, 49);
        return true;
    });
    g_at_objects.is_shut = false;
    looking.join();
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), 1u);
    CHECK_EQUAL(memory[0].record.size, 48);
}

CASE(while_recording_is_stopped) {
    memscope_stop();
    const pid_t child = in_child([] {
        memscope_start();
        return allocate();
    });
    CHECK_EQUAL(memory_events(static_cast<u32>(child)).size(), 1u);
    memscope_start();
}

// As when a signal comes in the middle of a hook, and its handler forks and returns in the child.
CASE(in_the_middle_of_a_hook) {
    const auto before = own_memory_events().size();
    pid_t child = -1;
    t_fork_at_clock = &child;
    allocate();
    if (child == 0) {
        alarm(20);
        allocate();
        _exit(records() ? 1 : 0);
    }
    CHECK(child > 0);
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(rings_of(child), 0u);
    DIR* const directory = opendir(session_directory().c_str());
    bool is_counted = false;
    const std::string note = "unwatched-" + std::to_string(child) + "-";
    while (const dirent* entry = readdir(directory))
        is_counted |= strncmp(entry->d_name, note.c_str(), note.size()) == 0;
    closedir(directory);
    CHECK(is_counted);
    CHECK(own_memory_events().size() > before);
    CHECK_EQUAL(memory_events(static_cast<u32>(in_child(allocate))).size(), 1u);  // the next child is like any other
}

int main(int argc, char** argv) {
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
