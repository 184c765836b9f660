// What the tests of kernel launches share: each case is a process of its own, since the simulator's knobs, the recorder
// and the reader of kernel times are one per process; and kernels that know when they ran.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cann.h"
#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"
#include "source/launch.h"

extern "C" {
unsigned memscope_install_hooks();
int aclInit(const char* config);
int aclFinalize();
int aclrtLaunchKernel(void* function, std::uint32_t blocks, const void* args, std::size_t bytes, void* stream);
int aclrtLaunchKernelV2(void* function, std::uint32_t blocks, const void* args, std::size_t bytes, void* config,
                        void* stream);
int aclrtLaunchKernelWithConfig(void* function, std::uint32_t blocks, void* stream, void* config, void* args,
                                void* reserved);
int aclrtLaunchKernelWithHostArgs(void* function, std::uint32_t blocks, void* stream, void* config, void* args,
                                  std::size_t bytes, void* holders, std::size_t holder_count);
// A forked child of these tests may have threads of its own.

__attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "die_after_fork=0"; }
}

namespace kernels {

using namespace memscope;

using Knobs = std::vector<std::pair<const char*, const char*>>;

// Waits for a condition; a test that waits for what never comes fails.
inline void wait_for(const char* what, const std::function<bool()>& condition, int seconds = 30) {
    const u64 deadline = monotonic_ns() + static_cast<u64>(seconds) * 1'000'000'000;
    while (!condition()) {
        if (monotonic_ns() > deadline) check::fail(__FILE__, __LINE__, std::string("waited in vain for ") + what);
        usleep(500);
    }
}

// Waits for a process and checks that it ended well.
inline void expect_success(pid_t child) {
    int status = -1;
    try {
        wait_for("the child", [&] { return waitpid(child, &status, WNOHANG) == child; }, 60);
    } catch (...) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        throw;
    }
    CHECK_EQUAL(status, 0);
}

inline pid_t start_child(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) return child;
    int status = 0;
    try {
        body();
    } catch (const check::Failure&) {
        status = 1;
    }
    exit(status);
}

inline void begin_recording() {
    CHECK_EQUAL(memscope_set_session(own::session_directory().c_str()), 0);
    memscope_configure("ring_mib=16");
    memscope_configure("devices=npu");
    memscope_configure("sorts=2");
    CHECK(memscope_install_hooks() > 0);
    memscope_start();
}

// The body runs in a process that has made no CANN call before and records; it ends through exit().
inline void in_process(const Knobs& knobs, const std::function<void()>& body) {
    own::session_directory();  // one for all
    expect_success(start_child([&] {
        for (const auto& knob : knobs) setenv(knob.first, knob.second, 1);
        begin_recording();
        body();
    }));
}

inline void spin_ns(u64 ns) {
    const u64 end = monotonic_ns() + ns;
    while (monotonic_ns() < end) {
    }
}

// A kernel that notes when it ran. Each launch gets one of its own.
struct Kernel {
    explicit Kernel(const char* name, u64 duration = 0) : duration_ns(duration) {
        handle = {SIM_KERNEL_MAGIC, name, run, this};
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;
    static void run(void* context) {
        auto* const self = static_cast<Kernel*>(context);
        self->began = monotonic_ns();
        spin_ns(self->duration_ns);
        self->ended = monotonic_ns();
    }
    int launch(void* stream) {
        return aclrtLaunchKernelWithHostArgs(&handle, 1, stream, nullptr, nullptr, 0, nullptr, 0);
    }

    SimKernel handle;
    u64 duration_ns;
    u64 began = 0, ended = 0;
};

// Every event of this process that was begun before the call. The reader of kernel times may be writing: a record that
// is not complete yet hides those behind it, so this waits for it.
inline std::vector<own::Seen> all_events() {
    std::vector<own::Seen> all;
    for (const std::string& path : own::rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(getpid())) {
            const u64 head = ring.header->head.load();
            for (u64 at = 0; at < head;) {
                wait_for("a complete record", [&] { return is_valid(ring.peek(at)); });
                at += ring.peek(at).length;
            }
            for (const own::Seen& one : own::events_of(ring)) all.push_back(one);
        }
        ring.unmap();
    }
    return all;
}

inline std::vector<own::Seen> events_of_kind(Kind kind) {
    std::vector<own::Seen> found;
    for (const own::Seen& one : all_events())
        if (one.kind == kind) found.push_back(one);
    return found;
}
inline std::vector<own::Seen> launches() { return events_of_kind(Kind::KERNEL_LAUNCH); }

inline memscope_kernel_stats stats() {
    memscope_kernel_stats now;
    memscope_get_kernel_stats(&now);
    return now;
}

inline void wait_until_timed(u64 count) {
    wait_for("the end of every kernel", [&] { return stats().timed >= count; });
}

inline bool has_lost(const char* source) {
    struct Search {
        const char* source;
        int count;
    } search = {source, 0};
    memscope_visit_lost(
        [](void* context, const char* of, const char*) {
            auto* const wanted = static_cast<Search*>(context);
            if (strcmp(of, wanted->source) == 0) ++wanted->count;
        },
        &search);
    return search.count == 1;  // told once, however often it happened
}

inline int run_all(int argc, char** argv) {
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + own::session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}

}  // namespace kernels
