// libascend_hal.so: the driver. Own declarations of its C ABI, after the headers of the torch_npu wheel and the open
// CANN sources, read for facts.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

typedef int drvError_t;
enum : int {
    DRV_OK = 0,
    DRV_INVALID_DEVICE = 2,
    DRV_INVALID_VALUE = 3,
    DRV_INVALID_HANDLE = 4,
    DRV_OOM = 6,
    DRV_INNER_ERR = 7,
    DRV_NOT_EXIST = 11,
    DRV_REPEATED = 12,
    DRV_BUSY = 13,
    DRV_NOT_SUPPORT = 0xfffe,
};

// Flag word of halMemAlloc:
//
//   0-9     device (physical)
//   10-13   kind of virtual memory        0 SVM, 1 device, 2 host, 3 DVPP, 4 host agent, 5 reserved range
//   14-16   kind of physical memory       0 DDR, 1 HBM
//   17      huge pages (2 MiB)
//   20-24   alignment, a power of two
//   25      reachable from peer devices
//   31      giant pages (1 GiB)
//   56-63   module: which part of the stack asks
enum : uint64_t {
    MEMF_DEVID = 0x3ff,
    MEMF_VIRT_SHIFT = 10,
    MEMF_SVM = 0ull << MEMF_VIRT_SHIFT,
    MEMF_DEV = 1ull << MEMF_VIRT_SHIFT,
    MEMF_HOST = 2ull << MEMF_VIRT_SHIFT,
    MEMF_DVPP = 3ull << MEMF_VIRT_SHIFT,
    MEMF_VIRT_LAST = 5ull << MEMF_VIRT_SHIFT,
    MEMF_VIRT_MASK = 0xfull << MEMF_VIRT_SHIFT,
    MEMF_HBM = 1ull << 14,
    MEMF_HUGE = 1ull << 17,
    MEMF_ALIGN9 = 9ull << 20,
    MEMF_P2P = 1ull << 25,
    MEMF_GIANT = 1ull << 31,
    MEMF_MODULE_SHIFT = 56,
};

// Modules that the simulator knows by name (the driver knows some 75).
enum : uint16_t {
    MODULE_HCCL = 3,
    MODULE_RUNTIME = 7,
    MODULE_APP = 33,
    MODULE_AICPU = 36,
    MODULE_GE = 45,
};

struct drv_mem_prop {
    uint32_t side;  // 0 host, 1 device, 2 host NUMA node
    uint32_t devid;
    uint32_t module_id;
    uint32_t pg_type;   // 0 normal, 1 huge, 2 giant
    uint32_t mem_type;  // 0 HBM, 1 DDR, 2 P2P HBM, 3 P2P DDR, 4 TS DDR
    uint64_t reserve;
};
struct drv_mem_handle;

// Memory. The *Inner twins are for tools: the plain functions only pass on to them.
SIM_API drvError_t halMemAlloc(void** address, unsigned long long size, unsigned long long flag);
SIM_API drvError_t halMemAllocInner(void** address, unsigned long long size, unsigned long long flag);
SIM_API drvError_t halMemFree(void* address);
SIM_API drvError_t halMemFreeInner(void* address);

// Physical memory and address ranges apart from each other.
SIM_API drvError_t halMemCreate(drv_mem_handle** handle, size_t size, const drv_mem_prop* prop, uint64_t flag);
SIM_API drvError_t halMemCreateInner(drv_mem_handle** handle, size_t size, const drv_mem_prop* prop, uint64_t flag);
SIM_API drvError_t halMemRelease(drv_mem_handle* handle);
SIM_API drvError_t halMemReleaseInner(drv_mem_handle* handle);
SIM_API drvError_t halMemAddressReserve(void** address, size_t size, size_t alignment, void* wanted, uint64_t flag);
SIM_API drvError_t halMemAddressFree(void* address);
SIM_API drvError_t halMemMap(void* address, size_t size, size_t offset, drv_mem_handle* handle, uint64_t flag);
SIM_API drvError_t halMemUnmap(void* address);

SIM_API drvError_t halHostRegister(void* address, uint64_t size, uint32_t flag, uint32_t device, void** mapped);
SIM_API drvError_t halHostUnregister(void* address, uint32_t device);

SIM_API drvError_t drvGetDevNum(uint32_t* count);
SIM_API drvError_t halGetAPIVersion(int* version);
enum : int32_t { HAL_MODULE_SYSTEM = 0, HAL_INFO_VERSION = 1, HAL_INFO_SYS_COUNT = 13, HAL_INFO_OSC_FREQUENCY = 25 };
SIM_API drvError_t halGetDeviceInfo(uint32_t device, int32_t module, int32_t info, int64_t* value);

// Profiling channel: begin and end of tasks, as the device notes them (abi/profiling.h).
SIM_API int prof_drv_start(unsigned device, unsigned channel, void* parameters);
SIM_API int prof_stop(unsigned device, unsigned channel);
SIM_API int prof_channel_read(unsigned device, unsigned channel, char* buffer, unsigned length);
