// AscendCL: streams, events, callbacks and kernels.
#include <unistd.h>
#include "abi/runtime.h"
#include "acl_rt_impl/functions.h"
#include "npusim.h"
#include "runtime/event.h"

namespace {

constexpr int kEventComplete = 1;

// One place for all launches: below it there is nothing to hook on a new CANN, so that a launch is seen once.
aclError launch(void* function, uint32_t blocks, void* stream) {
    return rtKernelLaunchWithHandleV2(function, 0, blocks, nullptr, nullptr, stream, nullptr);
}

}  // namespace

aclError aclrtCreateStreamImpl(void** stream) { return rtStreamCreate(stream, 0); }
aclError aclrtCreateStreamWithConfigImpl(void** stream, uint32_t priority, uint32_t) {
    return rtStreamCreate(stream, static_cast<int32_t>(priority));
}
aclError aclrtDestroyStreamImpl(void* stream) { return rtStreamDestroy(stream); }
aclError aclrtDestroyStreamForceImpl(void* stream) { return rtStreamDestroy(stream); }
aclError aclrtSynchronizeStreamImpl(void* stream) { return rtStreamSynchronize(stream); }
aclError aclrtSynchronizeStreamWithTimeoutImpl(void* stream, int32_t) { return rtStreamSynchronize(stream); }
aclError aclrtStreamGetIdImpl(void* stream, int32_t* id) { return rtGetStreamId(stream, id); }
aclError aclrtStreamWaitEventImpl(void* stream, void* event) { return rtStreamWaitEvent(stream, event); }

aclError aclrtStreamQueryImpl(void* stream, int* status) {
    *status = rtStreamQuery(stream);
    return ACL_OK;
}

aclError aclrtGetStreamOverflowSwitchImpl(void*, uint32_t* flag) {
    *flag = 0;
    return ACL_OK;
}

aclError aclrtCreateEventImpl(void** event) { return rtEventCreate(event); }
aclError aclrtCreateEventWithFlagImpl(void** event, uint32_t) { return rtEventCreate(event); }
aclError aclrtCreateEventExWithFlagImpl(void** event, uint32_t) { return rtEventCreate(event); }
aclError aclrtDestroyEventImpl(void* event) { return rtEventDestroy(event); }
aclError aclrtRecordEventImpl(void* event, void* stream) { return rtEventRecord(event, stream); }
aclError aclrtResetEventImpl(void* event, void* stream) { return rtEventReset(event, stream); }
aclError aclrtSynchronizeEventImpl(void* event) { return rtEventSynchronize(event); }

aclError aclrtQueryEventStatusImpl(void* event, int* status) {
    *status = npusim_event_is_complete(event) != 0 ? kEventComplete : 0;
    return ACL_OK;
}

aclError aclrtQueryEventWaitStatusImpl(void*, int* status) {
    *status = 0;
    return ACL_OK;
}

aclError aclrtEventElapsedTimeImpl(float* ms, void* from, void* to) {
    *ms = static_cast<float>(static_cast<double>(npusim_event_ns(to) - npusim_event_ns(from)) / 1e6);
    return ACL_OK;
}

aclError aclrtEventGetTimestampImpl(void* event, uint64_t* us) {
    *us = static_cast<uint64_t>(npusim_event_ns(event)) / 1000;
    return ACL_OK;
}

// Callbacks run on the stream itself: the thread that polls for them here never finds one.
aclError aclrtProcessReportImpl(int32_t timeout) {
    usleep(static_cast<useconds_t>(timeout > 0 ? timeout : 1) * 1000);
    return ACL_OK;
}

aclError aclrtLaunchHostFuncImpl(void* stream, aclrtCallback function, void* context) {
    npusim_stream_run(stream, function, context);
    return ACL_OK;
}

aclError aclrtLaunchCallbackImpl(aclrtCallback function, void* context, int, void* stream) {
    npusim_stream_run(stream, function, context);
    return ACL_OK;
}

aclError aclrtLaunchKernelImpl(void* function, uint32_t blocks, const void*, size_t, void* stream) {
    return launch(function, blocks, stream);
}

aclError aclrtLaunchKernelV2Impl(void* function, uint32_t blocks, const void*, size_t, void*, void* stream) {
    return launch(function, blocks, stream);
}

aclError aclrtLaunchKernelWithConfigImpl(void* function, uint32_t blocks, void* stream, void*, void*, void*) {
    return launch(function, blocks, stream);
}

aclError aclrtLaunchKernelWithHostArgsImpl(void* function, uint32_t blocks, void* stream, void*, void*, size_t, void*,
                                           size_t) {
    return launch(function, blocks, stream);
}
