// Stands for an Ascend driver of another version: one that has only the functions named halX or only halXInner
// (FAKE_SUFFIX), takes no lock, accepts a handle without properties, and refuses what the test tells it to refuse.
#include <unistd.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define FAKE_API extern "C" __attribute__((visibility("default")))
#define FAKE_PASTE(name, suffix) name##suffix
#define FAKE_NAME(name, suffix) FAKE_PASTE(name, suffix)
#define FAKE(name) FAKE_NAME(name, FAKE_SUFFIX)

namespace {
std::atomic<std::uint64_t> threads{0};
thread_local std::uint64_t next = 0;  // an address that was never handed out before
}  // namespace

extern "C" {
__attribute__((visibility("default"))) int fake_status = 0;  // what every call returns
}

namespace {
int give(void** out) {
    if (fake_status != 0) return fake_status;
    if (next == 0) next = (threads.fetch_add(1) + 1) << 40;
    next += 4096;
    *out = reinterpret_cast<void*>(next);
    return 0;
}
}  // namespace

FAKE_API int FAKE(halMemAlloc)(void** out, unsigned long long, unsigned long long) { return give(out); }
FAKE_API int FAKE(halMemFree)(void*) { return fake_status; }
FAKE_API int FAKE(halMemCreate)(void** handle, std::size_t, const void*, std::uint64_t) { return give(handle); }
FAKE_API int FAKE(halMemRelease)(void*) { return fake_status; }

// And for HCCL: a communicator takes two blocks at its first operation, one of which it needs no longer than that.
FAKE_API int HcclGetCommName(void*, char* name) {
    std::strcpy(name, "fake_group");
    return 0;
}
FAKE_API int HcclBarrier(void* communicator, void* forever) {
    constexpr unsigned long long kOfHccl = 3ull << 56 | 1ull << 10;
    auto** const blocks = static_cast<void**>(communicator);
    for (int i = 0; i < 2; ++i)
        if (const int status = FAKE(halMemAlloc)(&blocks[i], 4096, kOfHccl); status != 0) return status;
    while (forever != nullptr) pause();
    return FAKE(halMemFree)(blocks[1]);
}
