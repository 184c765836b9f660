// Stands for libtorch_cpu.so: a library that calls c10 through its GOT. Built twice: linked to the test program,
// and loaded by it later.
#include <cstddef>
#include <cstdint>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define FAKE_NAME(suffix) JOIN(FAKE_PREFIX, suffix)
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace c10 {
struct Device {
    std::int8_t type;
    std::int8_t index;
};
class ProfiledCPUMemoryReporter {
public:
    void New(void* ptr, std::size_t bytes);
    void Delete(void* ptr);
    void OutOfMemory(std::size_t bytes);
};
void reportMemoryUsageToProfiler(void*, std::int64_t, std::size_t, std::size_t, Device);
}  // namespace c10

EXPORT void FAKE_NAME(_allocate)(void* ptr, std::size_t bytes) { c10::ProfiledCPUMemoryReporter().New(ptr, bytes); }
EXPORT void FAKE_NAME(_release)(void* ptr) { c10::ProfiledCPUMemoryReporter().Delete(ptr); }
EXPORT void FAKE_NAME(_cuda)(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved, int device) {
    c10::reportMemoryUsageToProfiler(ptr, size, allocated, reserved, {1, static_cast<std::int8_t>(device)});
}
