// Stands for libc10.so: the same mangled symbols, counting their calls.
#include <cstddef>
#include <cstdint>

#define EXPORT __attribute__((visibility("default")))

extern "C" {
EXPORT int fake_news = 0;
EXPORT int fake_deletes = 0;
EXPORT int fake_reports = 0;
}

namespace c10 {

struct Device {
    std::int8_t type;
    std::int8_t index;
};

class EXPORT ProfiledCPUMemoryReporter {
public:
    void New(void* ptr, std::size_t bytes);
    void Delete(void* ptr);
    void OutOfMemory(std::size_t bytes);
};

void ProfiledCPUMemoryReporter::New(void*, std::size_t) { __atomic_fetch_add(&fake_news, 1, __ATOMIC_RELAXED); }
void ProfiledCPUMemoryReporter::Delete(void*) { __atomic_fetch_add(&fake_deletes, 1, __ATOMIC_RELAXED); }
void ProfiledCPUMemoryReporter::OutOfMemory(std::size_t) {}

EXPORT void reportMemoryUsageToProfiler(void*, std::int64_t, std::size_t, std::size_t, Device) {
    __atomic_fetch_add(&fake_reports, 1, __ATOMIC_RELAXED);
}
EXPORT void reportOutOfMemoryToProfiler(std::int64_t, std::size_t, std::size_t, Device) {}

}  // namespace c10
