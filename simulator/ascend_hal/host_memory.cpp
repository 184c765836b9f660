// Host memory made known to the driver: pinned, and reachable from the device under the same address.
#include "ascend_hal/driver_state.h"
#include "calls.h"

drvError_t halHostRegister(void* address, uint64_t size, uint32_t flag, uint32_t device, void** mapped) {
    SIM_CALL(DRV_OOM);
    DriverState& state = driver();
    if (address == nullptr || size == 0) return DRV_INVALID_VALUE;
    if (device >= state.devices) return DRV_INVALID_DEVICE;
    const std::lock_guard<std::mutex> hold(state.lock);
    if (!state.registered.emplace(reinterpret_cast<uint64_t>(address), Registration{size, flag}).second)
        return DRV_REPEATED;
    if (mapped != nullptr) *mapped = address;
    npusim_trace("halHostRegister %p size=%llu flag=%#x", address, static_cast<unsigned long long>(size), flag);
    return DRV_OK;
}

drvError_t halHostUnregister(void* address, uint32_t) {
    SIM_CALL(DRV_INVALID_VALUE);
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    if (state.registered.erase(reinterpret_cast<uint64_t>(address)) == 0) return DRV_NOT_EXIST;
    npusim_trace("halHostUnregister %p", address);
    return DRV_OK;
}

uint64_t npusim_registered_bytes(void) {
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    uint64_t sum = 0;
    for (const auto& one : state.registered) sum += one.second.size;
    return sum;
}
