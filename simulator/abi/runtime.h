// libruntime.so: the runtime below AscendCL. Devices are logical here, counted over ASCEND_RT_VISIBLE_DEVICES.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

typedef int rtError_t;
enum : int {
    RT_OK = 0,
    RT_PARAM_INVALID = 107000,
    RT_INVALID_DEVICE = 107001,
    RT_CONTEXT_NULL = 107002,
    RT_FEATURE_NOT_SUPPORT = 207000,
    RT_OOM = 207001,
};

SIM_API rtError_t rtSetDevice(int32_t device);
SIM_API rtError_t rtGetDevice(int32_t* device);
SIM_API rtError_t rtGetDeviceCount(int32_t* count);
SIM_API rtError_t rtDeviceReset(int32_t device);
SIM_API rtError_t rtDeviceSynchronize(void);
SIM_API rtError_t rtCtxGetCurrent(void** context);
SIM_API rtError_t rtCtxSetCurrent(void* context);

SIM_API rtError_t rtMalloc(void** address, uint64_t size, uint32_t type, uint16_t module);
SIM_API rtError_t rtFree(void* address);
SIM_API rtError_t rtMallocHost(void** address, uint64_t size, uint16_t module);
SIM_API rtError_t rtFreeHost(void* address);

SIM_API rtError_t rtStreamCreate(void** stream, int32_t priority);
SIM_API rtError_t rtStreamDestroy(void* stream);
SIM_API rtError_t rtStreamSynchronize(void* stream);
SIM_API rtError_t rtStreamQuery(void* stream);
SIM_API rtError_t rtGetStreamId(void* stream, int32_t* id);
SIM_API rtError_t rtStreamWaitEvent(void* stream, void* event);

SIM_API rtError_t rtEventCreate(void** event);
SIM_API rtError_t rtEventDestroy(void* event);
SIM_API rtError_t rtEventRecord(void* event, void* stream);
SIM_API rtError_t rtEventReset(void* event, void* stream);
SIM_API rtError_t rtEventSynchronize(void* event);

SIM_API rtError_t rtKernelLaunch(const void* stub, uint32_t blocks, void* args, uint32_t args_size, void* memory,
                                 void* stream);
SIM_API rtError_t rtKernelLaunchWithHandleV2(void* handle, const uint64_t tiling_key, uint32_t blocks, void* args,
                                             void* memory, void* stream, const void* config);
SIM_API rtError_t rtKernelLaunchWithFlagV2(const void* stub, uint32_t blocks, void* args, void* memory, void* stream,
                                           uint32_t flags, const void* config);
SIM_API rtError_t rtLaunchKernelByFuncHandle(void* function, uint32_t blocks, void* args, void* stream);
SIM_API rtError_t rtLaunchKernelByFuncHandleV2(void* function, uint32_t blocks, void* args, void* stream,
                                               const void* config);
SIM_API rtError_t rtAicpuKernelLaunchExWithArgs(uint32_t type, const char* name, uint32_t blocks, const void* args,
                                                void* memory, void* stream, uint32_t flags);
