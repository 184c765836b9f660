// AscendCL: devices.
#include <unistd.h>
#include "abi/runtime.h"
#include "acl_rt_impl/functions.h"
#include "npusim.h"

namespace {

// Of a 910B2.
constexpr uint32_t kCubeCores = 24, kVectorCores = 48;
constexpr int64_t kL2Bytes = 192ll << 20;
enum : int { CAPABILITY_CUBE = 0, CAPABILITY_VECTOR = 1, CAPABILITY_L2 = 2 };
enum : int { INFO_CUBE = 101, INFO_CUBE_TOO = 102, INFO_VECTOR = 201, INFO_MEMORY = 301, INFO_L2 = 302 };
enum : int { LIMIT_CUBE = 0 };

aclError core_limit(int kind, uint32_t* value) {
    *value = kind == LIMIT_CUBE ? kCubeCores : kVectorCores;
    return ACL_OK;
}

void device_memory(int32_t logical, uint64_t* used, uint64_t* total) {
    npusim_hbm_info(static_cast<uint32_t>(npusim_physical_device(logical)), used, total);
}

}  // namespace

aclError aclrtSetDeviceImpl(int32_t device) {
    npusim_trace("aclrtSetDevice %d", device);
    return rtSetDevice(device);
}

aclError aclrtGetDeviceImpl(int32_t* device) { return rtGetDevice(device); }

aclError aclrtResetDeviceImpl(int32_t device) {
    npusim_trace("aclrtResetDevice %d", device);
    return rtDeviceReset(device);
}

aclError aclrtResetDeviceForceImpl(int32_t device) { return aclrtResetDeviceImpl(device); }

aclError aclrtGetDeviceCountImpl(uint32_t* count) {
    int32_t visible = 0;
    const rtError_t error = rtGetDeviceCount(&visible);
    *count = static_cast<uint32_t>(visible);
    return error;
}

aclError aclrtGetCurrentContextImpl(void** context) { return rtCtxGetCurrent(context); }
aclError aclrtSetCurrentContextImpl(void* context) { return rtCtxSetCurrent(context); }
aclError aclrtSynchronizeDeviceImpl(void) { return rtDeviceSynchronize(); }
aclError aclrtSynchronizeDeviceWithTimeoutImpl(int32_t) { return rtDeviceSynchronize(); }

aclError aclrtDeviceCanAccessPeerImpl(int32_t* can, int32_t device, int32_t peer) {
    *can = device != peer;
    return ACL_OK;
}

aclError aclrtGetPrimaryCtxStateImpl(int32_t device, uint32_t* flags, int32_t* is_active) {
    int32_t current = -1;
    if (flags != nullptr) *flags = 0;
    *is_active = rtGetDevice(&current) == RT_OK && current == device;
    return ACL_OK;
}

aclError aclrtDeviceGetBareTgidImpl(int32_t* pid) {
    *pid = static_cast<int32_t>(getpid());
    return ACL_OK;
}

aclError aclGetDeviceCapabilityImpl(uint32_t, int kind, int64_t* value) {
    *value = kind == CAPABILITY_CUBE     ? kCubeCores
             : kind == CAPABILITY_VECTOR ? kVectorCores
             : kind == CAPABILITY_L2     ? kL2Bytes
                                         : 0;
    return ACL_OK;
}

aclError aclrtGetDeviceInfoImpl(uint32_t device, int attribute, int64_t* value) {
    uint64_t used = 0, total = 0;
    device_memory(static_cast<int32_t>(device), &used, &total);
    switch (attribute) {
        case INFO_CUBE:
        case INFO_CUBE_TOO:
            *value = kCubeCores;
            break;
        case INFO_VECTOR:
            *value = kVectorCores;
            break;
        case INFO_MEMORY:
            *value = static_cast<int64_t>(total);
            break;
        case INFO_L2:
            *value = kL2Bytes;
            break;
        default:
            *value = 0;
    }
    return ACL_OK;
}

// "Logic" is the driver's number here: physical.
aclError aclrtGetLogicDevIdByUserDevIdImpl(const int32_t user, int32_t* logic) {
    *logic = npusim_physical_device(user);
    if (*logic < 0) return RT_INVALID_DEVICE;
    return ACL_OK;
}

aclError aclrtGetDeviceUtilizationRateImpl(int32_t device, int32_t* rates) {
    uint64_t used = 0, total = 1;
    device_memory(device, &used, &total);
    rates[0] = rates[1] = rates[2] = 0;  // cores and CPUs
    rates[3] = static_cast<int32_t>(used * 100 / total);
    return ACL_OK;
}

aclError aclrtGetDeviceResLimitImpl(int32_t, int kind, uint32_t* value) { return core_limit(kind, value); }
aclError aclrtGetStreamResLimitImpl(void*, int kind, uint32_t* value) { return core_limit(kind, value); }
aclError aclrtGetResInCurrentThreadImpl(int kind, uint32_t* value) { return core_limit(kind, value); }

aclError aclrtSetOpExecuteTimeOutV2Impl(uint64_t timeout, uint64_t* actual) {
    *actual = timeout;
    return ACL_OK;
}
