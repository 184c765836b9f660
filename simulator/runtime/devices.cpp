#include "runtime/devices.h"
#include <cstdlib>
#include <vector>
#include "abi/driver.h"
#include "abi/runtime.h"
#include "calls.h"
#include "npusim.h"
#include "runtime/stream.h"

namespace {

thread_local int32_t t_device = -1;
char g_contexts[NPUSIM_MOST_DEVICES];  // a context is only an address: one per device

// The list ends at the first entry that is no device of the machine. One that does not ascend makes no device visible
// at all, as in the open runtime, which calls it an error of order; rtSetDevice then says 107001.
std::vector<int32_t> read_visible_devices() {
    uint32_t count = 0;
    drvGetDevNum(&count);
    std::vector<int32_t> visible;
    const char* text = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (text == nullptr) {
        for (uint32_t i = 0; i < count; ++i) visible.push_back(static_cast<int32_t>(i));
        return visible;
    }
    for (;;) {
        char* end = nullptr;
        const long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= static_cast<long>(count)) return visible;
        if (!visible.empty() && device <= visible.back()) return {};
        visible.push_back(static_cast<int32_t>(device));
        if (*end != ',') return visible;
        text = end + 1;
    }
}

const std::vector<int32_t>& visible_devices() {
    static const auto* const visible = new std::vector<int32_t>(read_visible_devices());
    return *visible;
}

}  // namespace

int32_t physical_device(int32_t logical) {
    const std::vector<int32_t>& visible = visible_devices();
    return logical >= 0 && static_cast<size_t>(logical) < visible.size() ? visible[static_cast<size_t>(logical)] : -1;
}

int32_t npusim_physical_device(int32_t logical) { return physical_device(logical); }

int32_t current_device() { return t_device; }
void adopt_device(int32_t logical) { t_device = logical; }

rtError_t rtGetDeviceCount(int32_t* count) {
    SIM_CALL(RT_INVALID_DEVICE);
    *count = static_cast<int32_t>(visible_devices().size());
    return RT_OK;
}

rtError_t rtSetDevice(int32_t device) {
    SIM_CALL(RT_INVALID_DEVICE);
    if (physical_device(device) < 0) return RT_INVALID_DEVICE;
    if (!take_device_memory(device)) return RT_OOM;
    t_device = device;
    return RT_OK;
}

rtError_t rtGetDevice(int32_t* device) {
    SIM_CALL(RT_CONTEXT_NULL);
    if (t_device < 0) return RT_CONTEXT_NULL;
    *device = t_device;
    return RT_OK;
}

rtError_t rtDeviceReset(int32_t device) {
    SIM_CALL(RT_INVALID_DEVICE);
    if (physical_device(device) < 0) return RT_INVALID_DEVICE;
    give_back_device_memory(device);
    return RT_OK;
}

rtError_t rtDeviceSynchronize(void) {
    SIM_CALL(RT_CONTEXT_NULL);
    if (t_device < 0) return RT_CONTEXT_NULL;
    synchronise_streams(t_device);
    return RT_OK;
}

rtError_t rtCtxGetCurrent(void** context) {
    if (t_device < 0) return RT_CONTEXT_NULL;
    *context = &g_contexts[t_device];
    return RT_OK;
}

rtError_t rtCtxSetCurrent(void* context) {
    const char* const one = static_cast<char*>(context);
    if (one < g_contexts || one >= g_contexts + NPUSIM_MOST_DEVICES) return RT_PARAM_INVALID;
    t_device = static_cast<int32_t>(one - g_contexts);
    return RT_OK;
}
