// Source: PyTorch's allocators, CPU and CUDA.
//
// Symbols of libc10.so (no torch header is needed; signatures from c10/core/Allocator.h and
// c10/core/impl/alloc_cpu.h of torch 2.x):
//   * ProfiledCPUMemoryReporter::New/Delete/OutOfMemory: called for every CPU tensor whether or not a profiler
//     runs; New after the allocation, Delete before the release. Delete does not say the size.
//   * reportMemoryUsageToProfiler: called by the CUDA caching allocator under its lock, size negative for a
//     release, with the pool's allocated and reserved bytes. The CPU reporter calls it too while a profiler
//     runs: those are ignored here, New and Delete have told them already.
//   * reportOutOfMemoryToProfiler: the CUDA pool could not serve a request.
#include <sys/resource.h>

#include "hook/blocks.h"
#include "hook/guard.h"
#include "hook/patch.h"
#include "source/current_stream.h"

namespace memscope {
namespace {

// c10::Device and the values of c10::DeviceType (stable: they are serialised).
struct C10Device {
    signed char type;
    signed char index;
};
static_assert(sizeof(C10Device) == 2);
constexpr signed char kC10Cuda = 1;

std::atomic<void*> g_new, g_delete, g_out_of_memory, g_report, g_report_out_of_memory;

Block host_block(const void* ptr, std::size_t bytes) noexcept {
    Block block;
    block.pool = Pool::HOST;
    block.device_type = DeviceType::CPU;
    block.device = 0;
    block.ptr = reinterpret_cast<u64>(ptr);
    block.size = static_cast<i64>(bytes);
    return block;
}

// What the process may map in all (RLIMIT_AS), bytes: the usual reason why a host refuses at once.
i64 address_space_limit() noexcept {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
    return limit.rlim_cur > static_cast<rlim_t>(INT64_MAX) ? kUnknown : static_cast<i64>(limit.rlim_cur);
}

Block cuda_block(const void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved,
                 C10Device device) noexcept {
    Block block;
    block.pool = Pool::CUDA;
    block.device_type = DeviceType::CUDA;
    block.device = device.index;
    block.ptr = reinterpret_cast<u64>(ptr);
    block.size = size >= 0 ? size : -size;
    block.used = static_cast<i64>(allocated);
    block.total = static_cast<i64>(reserved);
    return block;
}

void cpu_new(void* self, void* ptr, std::size_t bytes) noexcept {
    original_of<void (*)(void*, void*, std::size_t)>(g_new)(self, ptr, bytes);
    if (!is_watching() || ptr == nullptr || bytes == 0) return;
    const Guard guard;
    if (guard) block_allocated(host_block(ptr, bytes));
}

void cpu_delete(void* self, void* ptr) noexcept {
    if (is_watching() && ptr != nullptr) {
        const Guard guard;
        if (guard) block_freed(host_block(ptr, 0));
    }
    original_of<void (*)(void*, void*)>(g_delete)(self, ptr);
}

void cpu_out_of_memory(void* self, std::size_t bytes) noexcept {
    if (is_recording()) {
        const Guard guard;
        Block block = host_block(nullptr, bytes);
        block.total = address_space_limit();
        if (guard) request_failed(block, 0);
    }
    original_of<void (*)(void*, std::size_t)>(g_out_of_memory)(self, bytes);
}

void report_usage(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved,
                  C10Device device) noexcept {
    if (is_watching() && device.type == kC10Cuda) {
        const Guard guard;
        Block block = cuda_block(ptr, size, allocated, reserved, device);
        if (guard && size >= 0) {
            block.stream = stream_of_allocation(block.device_type, block.device);
            block_allocated(block);
        }
        if (guard && size < 0) block_freed(block);
    }
    original_of<void (*)(void*, std::int64_t, std::size_t, std::size_t, C10Device)>(g_report)(ptr, size, allocated,
                                                                                              reserved, device);
}

void report_out_of_memory(std::int64_t size, std::size_t allocated, std::size_t reserved, C10Device device) noexcept {
    if (is_recording() && device.type == kC10Cuda) {
        const Guard guard;
        if (guard) request_failed(cuda_block(nullptr, size, allocated, reserved, device), 0);
    }
    original_of<void (*)(std::int64_t, std::size_t, std::size_t, C10Device)>(g_report_out_of_memory)(size, allocated,
                                                                                                     reserved, device);
}

const Hook kHooks[] = {
    {"_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm", reinterpret_cast<void*>(cpu_new), &g_new},
    {"_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv", reinterpret_cast<void*>(cpu_delete), &g_delete},
    {"_ZN3c1025ProfiledCPUMemoryReporter11OutOfMemoryEm", reinterpret_cast<void*>(cpu_out_of_memory), &g_out_of_memory},
    {"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", reinterpret_cast<void*>(report_usage), &g_report},
    {"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE", reinterpret_cast<void*>(report_out_of_memory),
     &g_report_out_of_memory},
};

}  // namespace

MEMSCOPE_SOURCE("c10", "torch", "allocations of torch on the cpu and on CUDA", kHooks);

}  // namespace memscope
