// Allocates from the driver and frees, on several threads, until somebody kills it. The file that is its argument says
// at every moment how far each thread is: which it is, and how many of its calls have returned.
//
// The calls of a thread: kKept allocations, then by turns one free of its oldest block and one allocation. The n-th
// allocation of thread t has n * kThreads + t bytes, so a size says which call it was.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "abi/driver.h"

namespace {

constexpr uint64_t kThreads = 3, kKept = 5, kDevices = 2;

struct Progress {
    std::atomic<uint64_t> tid, returned;
};

[[noreturn]] void work(uint64_t thread, Progress& progress) {
    progress.tid.store(static_cast<uint64_t>(syscall(SYS_gettid)));
    void* blocks[kKept];
    uint64_t calls = 0;
    for (uint64_t n = 1;; ++n) {
        void*& block = blocks[n % kKept];
        if (n > kKept) {
            if (halMemFree(block) != 0) abort();
            progress.returned.store(++calls);
        }
        if (halMemAlloc(&block, n * kThreads + thread, MEMF_DEV | (thread % kDevices)) != 0) abort();
        progress.returned.store(++calls);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int file = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    if (file < 0 || ftruncate(file, sizeof(Progress) * kThreads) != 0) return 2;
    void* const shared = mmap(nullptr, sizeof(Progress) * kThreads, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) return 2;
    auto* const progress = static_cast<Progress*>(shared);
    std::thread second(work, 1, std::ref(progress[1])), third(work, 2, std::ref(progress[2]));
    work(0, progress[0]);
}
