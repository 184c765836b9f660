// Facts of a device: number of devices, versions, clock.
#include <ctime>
#include "ascend_hal/device_clock.h"
#include "ascend_hal/driver_state.h"
#include "calls.h"
#include "knobs.h"

namespace {

constexpr int64_t kVersion = 5ll << 8;  // of a chip of the 910B family
constexpr int kApiVersion = 0x072400;

}  // namespace

uint64_t device_ticks() {
    static const int64_t mhz = npusim_knob(Knob::CLOCK_MHZ), offset_ns = npusim_knob(Knob::CLOCK_OFFSET_NS);
    static const int64_t ppm = npusim_knob(Knob::CLOCK_PPM);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t host_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
    // 128 bits: a drift of one millionth must not be lost after days.
    const __int128 device_ns = host_ns + static_cast<__int128>(host_ns) * ppm / 1000000 + offset_ns;
    return static_cast<uint64_t>(device_ns * mhz / 1000);
}

drvError_t drvGetDevNum(uint32_t* count) {
    SIM_CALL(DRV_INNER_ERR);
    *count = driver().devices;
    return DRV_OK;
}

drvError_t halGetAPIVersion(int* version) {
    if (version != nullptr) *version = kApiVersion;
    return DRV_OK;
}

drvError_t halGetDeviceInfo(uint32_t device, int32_t module, int32_t info, int64_t* value) {
    SIM_CALL(DRV_NOT_SUPPORT);
    if (value == nullptr) return DRV_INVALID_VALUE;
    if (device >= driver().devices) return DRV_INVALID_DEVICE;
    *value = 0;
    if (module != HAL_MODULE_SYSTEM) return DRV_OK;
    if (info == HAL_INFO_VERSION) *value = kVersion;
    if (info == HAL_INFO_OSC_FREQUENCY) *value = npusim_knob(Knob::CLOCK_MHZ);
    if (info == HAL_INFO_SYS_COUNT) *value = static_cast<int64_t>(device_ticks());
    return DRV_OK;
}
