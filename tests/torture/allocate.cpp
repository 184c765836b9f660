// Allocates and frees on several threads, a known number of times, and says at every moment how far it is.
//
// allocate FILE CALLS PAUSE_US STATUS: each thread makes CALLS calls of the allocator, by turns cudaMalloc and
// cudaFree, and waits PAUSE_US after every hundred. FILE, which it maps, holds for each thread how many of its calls
// have returned. Ends with STATUS. Built as a library, `allocate` does the same for a Python program.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

extern "C" int cudaMalloc(void** ptr, std::size_t bytes);
extern "C" int cudaFree(void* ptr);

namespace {

constexpr int kThreads = 2;

void work(std::uint64_t calls, unsigned pause_us, std::atomic<std::uint64_t>& returned) {
    void* block = nullptr;
    for (std::uint64_t call = 0; call < calls; ++call) {
        if ((call % 2 == 0 ? cudaMalloc(&block, 512 + call) : cudaFree(block)) != 0) std::abort();
        returned.store(call + 1);
        if (call % 100 == 99) usleep(pause_us);
    }
}

}  // namespace

extern "C" int allocate(const char* path, std::uint64_t calls, unsigned pause_us) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(std::atomic<std::uint64_t>) * kThreads) != 0) return 2;
    void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) return 2;
    auto* const returned = static_cast<std::atomic<std::uint64_t>*>(shared);
    std::thread second(work, calls, pause_us, std::ref(returned[1]));
    work(calls, pause_us, returned[0]);
    second.join();
    return 0;
}

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    const int failed =
        allocate(argv[1], std::strtoull(argv[2], nullptr, 10), static_cast<unsigned>(std::atoi(argv[3])));
    return failed != 0 ? failed : std::atoi(argv[4]);
}
