// Source: the CUDA runtime, as driver-level events of device cuda:n (signatures from cuda_runtime_api.h).
//
// torch's caching allocator takes its segments from here, so pool CUDA_DRIVER is what the process asked of the
// driver and pool CUDA (source c10) is what the allocator handed out of it. Only the shared libcudart is seen:
// a library that links the runtime statically (NCCL's own copy) calls it directly.
#include "hook/blocks.h"
#include "hook/guard.h"
#include "hook/patch.h"

namespace memscope {
namespace {

using Status = int;  // cudaError_t; 0 is cudaSuccess, 2 cudaErrorMemoryAllocation
constexpr Status kOutOfMemory = 2;

std::atomic<void*> g_malloc, g_free, g_malloc_async, g_free_async, g_host_alloc, g_malloc_host, g_free_host,
    g_host_register, g_host_unregister, g_malloc_managed, g_get_device, g_attributes;

// cudaPointerAttributes since CUDA 11: where an address lives, whichever device is current.
struct PointerAttributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
    char reserved[64];
};

i16 current_device() noexcept {
    int device = -1;
    const auto get = original_of<Status (*)(int*)>(g_get_device);
    return get != nullptr && get(&device) == 0 ? static_cast<i16>(device) : kNoDevice;
}

i16 device_of(const void* ptr) noexcept {
    PointerAttributes attributes = {};
    const auto get = original_of<Status (*)(PointerAttributes*, const void*)>(g_attributes);
    return get != nullptr && get(&attributes, ptr) == 0 ? static_cast<i16>(attributes.device) : current_device();
}

// Pinned memory belongs to the card's driver, but lies on the host.
Block block_at(const void* ptr, std::size_t bytes, i16 device, bool pinned, const char* function) noexcept {
    Block block;
    block.pool = Pool::CUDA_DRIVER;
    block.device_type = pinned ? DeviceType::CPU : DeviceType::CUDA;
    block.device = pinned ? static_cast<i16>(0) : device;
    block.flags = pinned ? static_cast<u8>(Flag::PINNED) : u8{0};
    block.ptr = reinterpret_cast<u64>(ptr);
    block.size = static_cast<i64>(bytes);
    block.name = function;
    return block;
}

// After the real call of an allocating function.
void allocated(Status status, void* const* ptr, std::size_t bytes, bool pinned, const char* function) noexcept {
    if (!is_watching() || bytes == 0) return;
    const Guard guard;
    if (!guard) return;
    const i16 device = pinned ? kNoDevice : current_device();
    if (status == 0) block_allocated(block_at(*ptr, bytes, device, pinned, function));
    if (status == kOutOfMemory) request_failed(block_at(nullptr, bytes, device, pinned, function), kOutOfMemory);
}

// Before the real call of a releasing function: afterwards the address may already be somebody else's.
void releasing(const void* ptr, bool pinned, const char* function) noexcept {
    if (!is_watching() || ptr == nullptr) return;
    const Guard guard;
    if (guard) block_freed(block_at(ptr, 0, pinned ? kNoDevice : device_of(ptr), pinned, function));
}

Status cuda_malloc(void** ptr, std::size_t bytes) noexcept {
    const Status status = original_of<Status (*)(void**, std::size_t)>(g_malloc)(ptr, bytes);
    allocated(status, ptr, bytes, false, "cudaMalloc");
    return status;
}

Status cuda_malloc_managed(void** ptr, std::size_t bytes, unsigned flags) noexcept {
    const Status status = original_of<Status (*)(void**, std::size_t, unsigned)>(g_malloc_managed)(ptr, bytes, flags);
    allocated(status, ptr, bytes, false, "cudaMallocManaged");
    return status;
}

Status cuda_malloc_async(void** ptr, std::size_t bytes, void* stream) noexcept {
    const Status status = original_of<Status (*)(void**, std::size_t, void*)>(g_malloc_async)(ptr, bytes, stream);
    allocated(status, ptr, bytes, false, "cudaMallocAsync");
    return status;
}

Status cuda_host_alloc(void** ptr, std::size_t bytes, unsigned flags) noexcept {
    const Status status = original_of<Status (*)(void**, std::size_t, unsigned)>(g_host_alloc)(ptr, bytes, flags);
    allocated(status, ptr, bytes, true, "cudaHostAlloc");
    return status;
}

Status cuda_malloc_host(void** ptr, std::size_t bytes) noexcept {
    const Status status = original_of<Status (*)(void**, std::size_t)>(g_malloc_host)(ptr, bytes);
    allocated(status, ptr, bytes, true, "cudaMallocHost");
    return status;
}

Status cuda_host_register(void* ptr, std::size_t bytes, unsigned flags) noexcept {
    const Status status = original_of<Status (*)(void*, std::size_t, unsigned)>(g_host_register)(ptr, bytes, flags);
    allocated(status, &ptr, bytes, true, "cudaHostRegister");
    return status;
}

Status cuda_free(void* ptr) noexcept {
    releasing(ptr, false, "cudaFree");
    return original_of<Status (*)(void*)>(g_free)(ptr);
}

Status cuda_free_async(void* ptr, void* stream) noexcept {
    releasing(ptr, false, "cudaFreeAsync");
    return original_of<Status (*)(void*, void*)>(g_free_async)(ptr, stream);
}

Status cuda_free_host(void* ptr) noexcept {
    releasing(ptr, true, "cudaFreeHost");
    return original_of<Status (*)(void*)>(g_free_host)(ptr);
}

Status cuda_host_unregister(void* ptr) noexcept {
    releasing(ptr, true, "cudaHostUnregister");
    return original_of<Status (*)(void*)>(g_host_unregister)(ptr);
}

// Looked up, never replaced: a hook without a replacement only finds its original.
const Hook kHooks[] = {
    {"cudaMalloc", reinterpret_cast<void*>(cuda_malloc), &g_malloc},
    {"cudaFree", reinterpret_cast<void*>(cuda_free), &g_free},
    {"cudaMallocAsync", reinterpret_cast<void*>(cuda_malloc_async), &g_malloc_async},
    {"cudaFreeAsync", reinterpret_cast<void*>(cuda_free_async), &g_free_async},
    {"cudaMallocManaged", reinterpret_cast<void*>(cuda_malloc_managed), &g_malloc_managed},
    {"cudaHostAlloc", reinterpret_cast<void*>(cuda_host_alloc), &g_host_alloc},
    {"cudaMallocHost", reinterpret_cast<void*>(cuda_malloc_host), &g_malloc_host},
    {"cudaFreeHost", reinterpret_cast<void*>(cuda_free_host), &g_free_host},
    {"cudaHostRegister", reinterpret_cast<void*>(cuda_host_register), &g_host_register},
    {"cudaHostUnregister", reinterpret_cast<void*>(cuda_host_unregister), &g_host_unregister},
    {"cudaGetDevice", nullptr, &g_get_device},
    {"cudaPointerGetAttributes", nullptr, &g_attributes},
};

}  // namespace

MEMSCOPE_SOURCE("cudart", "", "allocations from the CUDA driver", kHooks);

}  // namespace memscope
