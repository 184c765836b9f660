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
#include "hook/guard.h"
#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "stack/stacks.h"

namespace memscope {
namespace {

// c10::Device and the values of c10::DeviceType (stable: they are serialised).
struct C10Device {
    signed char type;
    signed char index;
};
static_assert(sizeof(C10Device) == 2);
constexpr signed char kC10Cpu = 0;
constexpr signed char kC10Cuda = 1;

std::atomic<void*> g_new, g_delete, g_out_of_memory, g_report, g_report_out_of_memory;

void record(Kind kind, Pool pool, DeviceType type, i16 device, const void* ptr, i64 size, i64 used,
            i64 total) noexcept {
    if (!is_selected(type, device)) return;
    Event event(kind);
    event.record.pool = static_cast<u8>(pool);
    event.record.device_type = static_cast<u8>(type);
    event.record.device = device;
    event.record.ptr = reinterpret_cast<u64>(ptr);
    event.record.size = size;
    event.record.used = used;
    event.record.total = total;
    if (kind != Kind::FREE) {
        event.record.stack_py = capture_python_stack(event.flags);
        event.record.stack_c = capture_native_stack(event.flags);
    }
    emit(event);
}

void cpu_new(void* self, void* ptr, std::size_t bytes) noexcept {
    original_of<void (*)(void*, void*, std::size_t)>(g_new)(self, ptr, bytes);
    if (!is_recording() || ptr == nullptr || bytes == 0) return;
    const Guard guard;
    if (guard) record(Kind::MALLOC, Pool::HOST, DeviceType::CPU, 0, ptr, static_cast<i64>(bytes), kUnknown, kUnknown);
}

void cpu_delete(void* self, void* ptr) noexcept {
    if (is_recording() && ptr != nullptr) {
        const Guard guard;
        if (guard) record(Kind::FREE, Pool::HOST, DeviceType::CPU, 0, ptr, 0, kUnknown, kUnknown);
    }
    original_of<void (*)(void*, void*)>(g_delete)(self, ptr);
}

void cpu_out_of_memory(void* self, std::size_t bytes) noexcept {
    if (is_recording()) {
        const Guard guard;
        if (guard)
            record(Kind::OOM, Pool::HOST, DeviceType::CPU, 0, nullptr, static_cast<i64>(bytes), kUnknown, kUnknown);
    }
    original_of<void (*)(void*, std::size_t)>(g_out_of_memory)(self, bytes);
}

void report_usage(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved,
                  C10Device device) noexcept {
    if (is_recording() && device.type == kC10Cuda) {
        const Guard guard;
        if (guard)
            record(size >= 0 ? Kind::MALLOC : Kind::FREE, Pool::CUDA, DeviceType::CUDA, device.index, ptr,
                   size >= 0 ? size : -size, static_cast<i64>(allocated), static_cast<i64>(reserved));
    }
    original_of<void (*)(void*, std::int64_t, std::size_t, std::size_t, C10Device)>(g_report)(ptr, size, allocated,
                                                                                              reserved, device);
}

void report_out_of_memory(std::int64_t size, std::size_t allocated, std::size_t reserved, C10Device device) noexcept {
    if (is_recording() && device.type != kC10Cpu) {
        const Guard guard;
        if (guard)
            record(Kind::OOM, Pool::CUDA, DeviceType::CUDA, device.index, nullptr, size, static_cast<i64>(allocated),
                   static_cast<i64>(reserved));
    }
    original_of<void (*)(std::int64_t, std::size_t, std::size_t, C10Device)>(g_report_out_of_memory)(size, allocated,
                                                                                                     reserved, device);
}

template <typename Function>
void* address(Function function) noexcept {
    return reinterpret_cast<void*>(function);
}

const Hook kHooks[] = {
    {"_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm", address(cpu_new), &g_new},
    {"_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv", address(cpu_delete), &g_delete},
    {"_ZN3c1025ProfiledCPUMemoryReporter11OutOfMemoryEm", address(cpu_out_of_memory), &g_out_of_memory},
    {"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", address(report_usage), &g_report},
    {"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE", address(report_out_of_memory), &g_report_out_of_memory},
};

}  // namespace

extern const HookTable kC10Hooks = {"c10", kHooks, sizeof kHooks / sizeof kHooks[0]};

}  // namespace memscope
