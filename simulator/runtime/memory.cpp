// Memory of the runtime: what callers ask for, and what CANN takes for itself.
#include <mutex>
#include "abi/driver.h"
#include "abi/runtime.h"
#include "calls.h"
#include "knobs.h"
#include "npusim.h"
#include "runtime/devices.h"

namespace {

constexpr uint64_t kHugePages = 1 << 20;  // blocks above this get them
// Our own figures: of the order that real ones have, and easy to tell apart.
constexpr uint64_t kRuntimeBytes = 16 << 20, kAicpuBytes = 4 << 20, kStreamBytes = 1 << 20;

rtError_t runtime_error(drvError_t error) {
    return error == DRV_OK ? RT_OK : error == DRV_OOM ? RT_OOM : RT_PARAM_INVALID;
}

rtError_t allocate(void** address, uint64_t size, int32_t logical, uint16_t module) {
    const uint64_t flag = MEMF_DEV | MEMF_HBM | MEMF_ALIGN9 | static_cast<uint64_t>(physical_device(logical)) |
                          static_cast<uint64_t>(module) << MEMF_MODULE_SHIFT;
    if (size <= kHugePages) return runtime_error(halMemAlloc(address, size, flag));
    drvError_t error = halMemAlloc(address, size, flag | MEMF_HUGE);
    if (error == DRV_OOM) error = halMemAlloc(address, size, flag);  // the real runtime tries again so, too
    return runtime_error(error);
}

bool takes_memory() {
    static const bool takes = npusim_knob(Knob::CANN_MEMORY) != 0;
    return takes;
}

struct OwnMemory {
    void* runtime = nullptr;
    void* aicpu = nullptr;
};
std::mutex g_own_lock;
OwnMemory g_own[NPUSIM_MOST_DEVICES];

}  // namespace

bool take_device_memory(int32_t logical) {
    if (!takes_memory()) return true;
    const std::lock_guard<std::mutex> hold(g_own_lock);
    OwnMemory& own = g_own[logical];
    if (own.runtime != nullptr) return true;
    return allocate(&own.runtime, kRuntimeBytes, logical, MODULE_RUNTIME) == RT_OK &&
           allocate(&own.aicpu, kAicpuBytes, logical, MODULE_AICPU) == RT_OK;
}

void give_back_device_memory(int32_t logical) {
    const std::lock_guard<std::mutex> hold(g_own_lock);
    OwnMemory& own = g_own[logical];
    if (own.runtime != nullptr) halMemFree(own.runtime);
    if (own.aicpu != nullptr) halMemFree(own.aicpu);
    own = OwnMemory{};
}

void* take_stream_memory(int32_t logical) {
    void* block = nullptr;
    if (takes_memory()) allocate(&block, kStreamBytes, logical, MODULE_RUNTIME);
    return block;
}

void give_back_stream_memory(void* block) {
    if (block != nullptr) halMemFree(block);
}

rtError_t rtMalloc(void** address, uint64_t size, uint32_t, uint16_t module) {
    SIM_CALL(RT_OOM);
    if (current_device() < 0) return RT_CONTEXT_NULL;
    return allocate(address, size, current_device(), module);
}

rtError_t rtFree(void* address) {
    SIM_CALL(RT_PARAM_INVALID);
    return runtime_error(halMemFree(address));
}

rtError_t rtMallocHost(void** address, uint64_t size, uint16_t module) {
    SIM_CALL(RT_OOM);
    const uint64_t flag = MEMF_HOST | MEMF_ALIGN9 | static_cast<uint64_t>(module) << MEMF_MODULE_SHIFT;
    return runtime_error(halMemAlloc(address, size, flag));
}

rtError_t rtFreeHost(void* address) {
    SIM_CALL(RT_PARAM_INVALID);
    return runtime_error(halMemFree(address));
}
