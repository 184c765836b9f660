// Kernels: a function handle is a SimKernel. Every launch is one task, reported to the profiler when it is launched
// and put on the driver's channel when it begins and ends.
#include "abi/runtime.h"
#include "calls.h"
#include "npusim.h"
#include "runtime/devices.h"
#include "runtime/stream.h"
#include "tasks.h"

namespace {

void run_task(const char* name, void (*run)(void*), void* context, void* handle) {
    Stream& stream = stream_of(handle);
    const SimTask task{static_cast<uint32_t>(physical_device(stream.device)), static_cast<uint16_t>(stream.id),
                       stream.next_task()};
    npusim_trace("kernel %s stream=%d task=%u", name, stream.id, task.task);
    npusim_task_launched(&task, name);
    stream.run([=] {
        npusim_task_record(&task, 0);
        if (run != nullptr) run(context);
        npusim_task_record(&task, 1);
    });
}

// A handle that points to no SimKernel is refused.
rtError_t launch(const void* handle, void* stream) {
    if (handle == nullptr) return RT_PARAM_INVALID;
    const auto* const kernel = static_cast<const SimKernel*>(handle);
    if (kernel->magic != SIM_KERNEL_MAGIC) return RT_PARAM_INVALID;
    run_task(kernel->name, kernel->run, kernel->context, stream);
    return RT_OK;
}

}  // namespace

rtError_t rtKernelLaunch(const void* stub, uint32_t, void*, uint32_t, void*, void* stream) {
    SIM_CALL(RT_PARAM_INVALID);
    return launch(stub, stream);
}

rtError_t rtKernelLaunchWithHandleV2(void* handle, const uint64_t, uint32_t, void*, void*, void* stream, const void*) {
    SIM_CALL(RT_PARAM_INVALID);
    return launch(handle, stream);
}

rtError_t rtKernelLaunchWithFlagV2(const void* stub, uint32_t, void*, void*, void* stream, uint32_t, const void*) {
    SIM_CALL(RT_PARAM_INVALID);
    return launch(stub, stream);
}

rtError_t rtLaunchKernelByFuncHandle(void* function, uint32_t, void*, void* stream) {
    SIM_CALL(RT_PARAM_INVALID);
    return launch(function, stream);
}

rtError_t rtLaunchKernelByFuncHandleV2(void* function, uint32_t, void*, void* stream, const void*) {
    SIM_CALL(RT_PARAM_INVALID);
    return launch(function, stream);
}

rtError_t rtAicpuKernelLaunchExWithArgs(uint32_t, const char* name, uint32_t, const void*, void*, void* stream,
                                        uint32_t) {
    SIM_CALL(RT_PARAM_INVALID);
    if (name == nullptr) return RT_PARAM_INVALID;
    run_task(name, nullptr, nullptr, stream);
    return RT_OK;
}
