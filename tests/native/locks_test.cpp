// A hook may be called with any lock held, by a thread of any priority: it waits neither for the loader nor, with a
// lock of ours, for the agent.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"
#include "stack/stacks.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
int cudaMalloc(void** ptr, std::size_t bytes);
int cudaFree(void* ptr);
}

// Named by constructor_waits.cpp.
#define SHARED __attribute__((visibility("default")))
SHARED pthread_mutex_t g_pool = PTHREAD_MUTEX_INITIALIZER;
SHARED std::atomic<bool> g_constructor_runs{false};
SHARED std::atomic<int> g_constructor_got_it{-1};

namespace {

constexpr u64 kRing = 1 << 20;
constexpr std::size_t kRefused = 1 << 21;  // more than the card has

// What happens to a caching allocator that is called while another thread loads a library.
void call_with_the_pool_locked_while_a_library_is_loading(void (*call)()) {
    g_constructor_runs = false;
    g_constructor_got_it = -1;
    pthread_mutex_lock(&g_pool);
    void* library = nullptr;
    std::thread loading([&] {
        library = dlopen(WAITING_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) fprintf(stderr, "%s\n", dlerror());
        g_constructor_runs = true;
    });
    while (!g_constructor_runs) usleep(100);
    call();
    pthread_mutex_unlock(&g_pool);
    loading.join();
    CHECK(library != nullptr);
    dlclose(library);
    CHECK_EQUAL(g_constructor_got_it.load(), 1);
}

const EventRecord& last(Kind kind) {
    static std::vector<Seen> all;
    all = own_events();
    for (auto one = all.rbegin(); one != all.rend(); ++one)
        if (one->kind == kind) return one->record;
    check::fail(__FILE__, __LINE__, "no such event");
}

}  // namespace

// The first case: nothing has been looked up yet, no address is known.
CASE(a_request_that_fails_is_recorded_with_its_stack_while_a_library_is_loading) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=1");
    memscope_configure("devices=cpu,npu,cuda");
    memscope_install_hooks();
    memscope_start();
    call_with_the_pool_locked_while_a_library_is_loading([] {
        void* block = nullptr;
        CHECK_EQUAL(cudaMalloc(&block, kRefused), 2);
    });
    CHECK(last(Kind::OOM).stack_c != 0);
}

CASE(a_block_is_recorded_with_its_stack_while_a_library_is_loading) {
    memscope_configure("python_depth=0;native_depth=20");
    call_with_the_pool_locked_while_a_library_is_loading([] {
        void* block = nullptr;
        CHECK_EQUAL(cudaMalloc(&block, 4096), 0);
        CHECK_EQUAL(cudaFree(block), 0);
    });
    CHECK(last(Kind::MALLOC).stack_c != 0);
    memscope_configure("python_depth=0;native_depth=0");
}

// As a thread of low priority is taken off the processor for a real-time one, in the middle of its wait.
std::atomic<bool> g_stopped{false}, g_may_go_on{false};
void stop_here(int) {
    g_stopped = true;
    while (!g_may_go_on) usleep(1000);
}

CASE(a_thread_that_waits_for_room_keeps_no_other_from_defining_texts) {
    const std::string some(1000, 'a'), other(1000, 'b');
    memscope_stats stats;
    memscope_configure("ring_wait_ms=0");
    memscope_meta("fills", "the ring");
    do {
        memscope_meta("fills", "the ring");
        memscope_get_stats(&stats);
    } while (stats.head + 2 * sizeof(EventRecord) <= kRing);
    CHECK_EQUAL(stats.lost, 0u);

    memscope_configure("ring_wait_ms=1000");
    signal(SIGUSR1, stop_here);
    std::thread waiting([&] { memscope_meta("waits", some.c_str()); });
    Ring ring;
    CHECK_EQUAL(ring.open(rings().at(0).c_str(), false), 0);
    while (ring.header->waits.load() == 0) usleep(100);
    pthread_kill(waiting.native_handle(), SIGUSR1);
    while (!g_stopped) usleep(100);

    std::atomic<bool> came_back{false};
    std::thread passing([&] {
        memscope_meta("passes", other.c_str());
        came_back = true;
    });
    for (int i = 0; i < 20'000 && !came_back; ++i) usleep(1000);
    const bool passed = came_back;
    g_may_go_on = true;
    waiting.join();
    passing.join();
    ring.unmap();
    CHECK(passed);
}

int main(int argc, char** argv) {
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
