// Stands for libcudart.so: hands out addresses behind which there is nothing, each once.
#include <atomic>
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
std::atomic<std::uintptr_t> next_address{0x700000000000};
}

struct cudaPointerAttributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
};

EXPORT int cudaMalloc(void** ptr, std::size_t bytes) {
    *ptr = reinterpret_cast<void*>(next_address.fetch_add((bytes + 511) / 512 * 512));
    return 0;
}
EXPORT int cudaFree(void*) { return 0; }
EXPORT int cudaGetDevice(int* device) { return *device = 0; }
EXPORT int cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) { return attributes->device = 0; }
