// Stands for libcudart.so, with a memory of 1 MiB: addresses are handed out and nothing is stored there.
#include <cstddef>
#include <map>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
constexpr int kSuccess = 0, kOutOfMemory = 2;
constexpr std::size_t kCapacity = 1 << 20;
std::size_t used = 0;
std::map<void*, std::size_t> blocks;

int take(void** ptr, std::size_t bytes) {
    if (used + bytes > kCapacity) return kOutOfMemory;
    *ptr = reinterpret_cast<void*>(0x7000000 + used);
    used += bytes;
    blocks[*ptr] = bytes;
    return kSuccess;
}
}  // namespace

struct cudaPointerAttributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
};

EXPORT int cudaMalloc(void** ptr, std::size_t bytes) { return take(ptr, bytes); }
EXPORT int cudaMallocAsync(void** ptr, std::size_t bytes, void*) { return take(ptr, bytes); }
EXPORT int cudaHostAlloc(void** ptr, std::size_t bytes, unsigned) { return take(ptr, bytes); }
EXPORT int cudaHostRegister(void*, std::size_t, unsigned) { return kSuccess; }
EXPORT int cudaHostUnregister(void*) { return kSuccess; }
EXPORT int cudaFree(void* ptr) { return blocks.erase(ptr) == 1 ? kSuccess : 1; }
EXPORT int cudaFreeAsync(void* ptr, void*) { return blocks.erase(ptr) == 1 ? kSuccess : 1; }
EXPORT int cudaFreeHost(void* ptr) { return blocks.erase(ptr) == 1 ? kSuccess : 1; }
EXPORT int cudaGetDevice(int* device) {
    *device = 5;
    return kSuccess;
}
// Blocks live on device 5 whichever is current when they are freed.
EXPORT int cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
    attributes->device = 5;
    return kSuccess;
}
