// AscendCL: memory.
#include <cstring>
#include "abi/driver.h"
#include "abi/runtime.h"
#include "acl_rt_impl/functions.h"
#include "npusim.h"

namespace {

constexpr size_t kAlignment = 32;
constexpr size_t kPadding = 32;  // what aclrtMalloc adds, aclrtMallocAlign32 does not

size_t align(size_t size) { return (size + kAlignment - 1) & ~(kAlignment - 1); }

aclError or_invalid(drvError_t error) {
    return error == DRV_OK ? ACL_OK : error == DRV_OOM ? ACL_RT_MEMORY_ALLOCATION : ACL_INVALID_PARAM;
}

// The physical device that this thread works with, or 0.
uint32_t driver_device() {
    int32_t device = 0;
    rtGetDevice(&device);
    const int32_t physical = npusim_physical_device(device);
    return physical < 0 ? 0 : static_cast<uint32_t>(physical);
}

bool is_known(const void* address) {
    uint32_t device = 0;
    uint64_t size = 0, flag = 0;
    return npusim_ptr_info(address, &device, &size, &flag) != 0;
}

struct Copy {
    void* to;
    const void* from;
    size_t size;
};
struct Fill {
    void* to;
    int value;
    size_t size;
};

}  // namespace

aclError aclrtMallocImpl(void** address, size_t size, int policy) {
    if (address == nullptr || size == 0) return ACL_INVALID_PARAM;
    return rtMalloc(address, align(size) + kPadding, static_cast<uint32_t>(policy), MODULE_APP);
}

aclError aclrtMallocAlign32Impl(void** address, size_t size, int policy) {
    if (address == nullptr || size == 0) return ACL_INVALID_PARAM;
    return rtMalloc(address, align(size), static_cast<uint32_t>(policy), MODULE_APP);
}

aclError aclrtFreeImpl(void* address) { return address != nullptr ? rtFree(address) : ACL_INVALID_PARAM; }

aclError aclrtMallocHostImpl(void** address, size_t size) {
    if (address == nullptr || size == 0) return ACL_INVALID_PARAM;
    return rtMallocHost(address, size, MODULE_APP);
}

aclError aclrtMallocHostWithCfgImpl(void** address, uint64_t size, void*) { return aclrtMallocHostImpl(address, size); }
aclError aclrtFreeHostImpl(void* address) { return address != nullptr ? rtFreeHost(address) : ACL_INVALID_PARAM; }

aclError aclrtHostRegisterImpl(void* address, uint64_t size, int, void** mapped) {
    return or_invalid(halHostRegister(address, size, 0, driver_device(), mapped));
}

aclError aclrtHostRegisterV2Impl(void* address, uint64_t size, uint32_t flag) {
    return or_invalid(halHostRegister(address, size, flag, driver_device(), nullptr));
}

aclError aclrtHostUnregisterImpl(void* address) { return or_invalid(halHostUnregister(address, driver_device())); }

aclError aclrtGetMemInfoImpl(int, size_t* free_bytes, size_t* total) {
    int32_t device = 0;
    if (rtGetDevice(&device) != RT_OK) return ACL_RT_NO_DEVICE_SET;
    uint64_t used = 0, all = 0;
    npusim_hbm_info(static_cast<uint32_t>(npusim_physical_device(device)), &used, &all);
    *free_bytes = all > used ? all - used : 0;
    *total = all;
    return ACL_OK;
}

aclError aclrtGetMemUsageInfoImpl(int32_t, void*, size_t, size_t* count) {
    *count = 0;
    return ACL_OK;
}

aclError aclrtPointerGetAttributesImpl(const void* address, aclrtPtrAttributes* attributes) {
    uint32_t device = 0;
    uint64_t size = 0, flag = 0;
    memset(attributes, 0, sizeof *attributes);
    if (npusim_ptr_info(address, &device, &size, &flag) == 0) {
        attributes->type = ACL_LOCATION_UNREGISTERED;
        return ACL_OK;
    }
    attributes->id = device;
    attributes->type = (flag & MEMF_VIRT_MASK) == MEMF_HOST ? ACL_LOCATION_HOST : ACL_LOCATION_DEVICE;
    attributes->page_size = (flag & MEMF_HUGE) != 0 ? 2u << 20 : 4096;
    return ACL_OK;
}

aclError aclrtReserveMemAddressImpl(void** address, size_t size, size_t alignment, void* wanted, uint64_t flags) {
    return or_invalid(halMemAddressReserve(address, size, alignment, wanted, flags));
}

aclError aclrtReleaseMemAddressImpl(void* address) { return or_invalid(halMemAddressFree(address)); }

aclError aclrtMallocPhysicalImpl(void** handle, size_t size, const aclrtPhysicalMemProp* prop, uint64_t flags) {
    if (handle == nullptr || prop == nullptr) return ACL_INVALID_PARAM;
    const bool on_device = prop->location == ACL_LOCATION_DEVICE;
    const int32_t device = on_device ? npusim_physical_device(static_cast<int32_t>(prop->id)) : 0;
    if (device < 0) return ACL_INVALID_PARAM;
    constexpr uint32_t kHugePages = 1, kHbm = 0;
    const drv_mem_prop wanted{on_device ? 1u : 0u, static_cast<uint32_t>(device), MODULE_APP, kHugePages, kHbm,
                              prop->reserved};
    return or_invalid(halMemCreate(reinterpret_cast<drv_mem_handle**>(handle), size, &wanted, flags));
}

aclError aclrtFreePhysicalImpl(void* handle) { return or_invalid(halMemRelease(static_cast<drv_mem_handle*>(handle))); }

aclError aclrtMapMemImpl(void* address, size_t size, size_t offset, void* handle, uint64_t flags) {
    return or_invalid(halMemMap(address, size, offset, static_cast<drv_mem_handle*>(handle), flags));
}

aclError aclrtUnmapMemImpl(void* address) { return or_invalid(halMemUnmap(address)); }

aclError aclrtMemcpyImpl(void* to, size_t most, const void* from, size_t size, int kind) {
    if (size > most) return ACL_INVALID_PARAM;
    npusim_trace("aclrtMemcpy kind=%d %zu bytes", kind, size);
    memmove(to, from, size);
    return ACL_OK;
}

aclError aclrtMemcpyAsyncImpl(void* to, size_t most, const void* from, size_t size, int kind, void* stream) {
    if (size > most) return ACL_INVALID_PARAM;
    npusim_trace("aclrtMemcpyAsync kind=%d %zu bytes stream=%p", kind, size, stream);
    // With pageable host memory the copy is done before the call returns: the caller may reuse that memory.
    if (kind != ACL_MEMCPY_DEVICE_TO_DEVICE && !is_known(kind == ACL_MEMCPY_HOST_TO_DEVICE ? from : to)) {
        rtStreamSynchronize(stream);
        memmove(to, from, size);
        return ACL_OK;
    }
    npusim_stream_run(
        stream,
        [](void* context) {
            auto* const copy = static_cast<Copy*>(context);
            memmove(copy->to, copy->from, copy->size);
            delete copy;
        },
        new Copy{to, from, size});
    return ACL_OK;
}

aclError aclrtMemcpyAsyncWithConditionImpl(void* to, size_t most, const void* from, size_t size, int kind,
                                           void* stream) {
    return aclrtMemcpyAsyncImpl(to, most, from, size, kind, stream);
}

aclError aclrtMemsetImpl(void* to, size_t most, int32_t value, size_t size) {
    if (size > most) return ACL_INVALID_PARAM;
    memset(to, value, size);
    return ACL_OK;
}

aclError aclrtMemsetAsyncImpl(void* to, size_t most, int32_t value, size_t size, void* stream) {
    if (size > most) return ACL_INVALID_PARAM;
    npusim_stream_run(
        stream,
        [](void* context) {
            auto* const fill = static_cast<Fill*>(context);
            memset(fill->to, fill->value, fill->size);
            delete fill;
        },
        new Fill{to, value, size});
    return ACL_OK;
}
