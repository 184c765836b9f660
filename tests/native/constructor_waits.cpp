// A library whose constructor wants a lock of the program that loads it, as one that allocates a static tensor does.
// The loader's lock is held meanwhile.
#include <pthread.h>
#include <time.h>
#include <atomic>

extern __attribute__((visibility("default"))) pthread_mutex_t g_pool;
extern __attribute__((visibility("default"))) std::atomic<bool> g_constructor_runs;
extern __attribute__((visibility("default"))) std::atomic<int> g_constructor_got_it;

namespace {
__attribute__((constructor)) void allocate() {
    g_constructor_runs.store(true);
    timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 20;  // who holds the lock needs milliseconds, or waits for us
    const bool got_it = pthread_mutex_timedlock(&g_pool, &deadline) == 0;
    if (got_it) pthread_mutex_unlock(&g_pool);
    g_constructor_got_it.store(got_it ? 1 : 0);
}
}  // namespace
