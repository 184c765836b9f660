// Source: kernel launches through AscendCL and the Ascend runtime.
//
// Only that a launch happens matters: arguments are passed on as they came. On one way down several of these
// functions are passed (aclrtX, aclrtXImpl, rtX); the outermost counts. Which task it became is said by the runtime's
// task report, on the same thread, within the call (msprof.cpp); when none comes, the record has no name.
// No stacks: a launch is told apart by its kernel, and there are too many.
#include "source/launch.h"

#include <initializer_list>
#include <tuple>

#include "hook/devices.h"
#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "record/ring.h"
#include "source/block_memory.h"
#include "source/watched_blocks.h"

namespace memscope {

std::atomic<void*> g_register_callback, g_set_prof_command, g_prof_start, g_prof_read, g_prof_stop, g_device_info,
    g_soc_name;

namespace {

std::atomic<void*> g_rt_get_device, g_acl_get_device;

constexpr i16 kAsk = -2;  // whichever device is current

struct ThreadState {
    u64 began;    // ts of the launch that is under way
    bool inside;  // a launch is under way
    bool told;    // its task report has come
    u64 name;     // of the latest task reported
    i16 unread;   // a device whose log is to be started before the next launch; kNoDevice: none
};
__thread ThreadState t_launch = {0, false, false, 0, kAsk};

void emit_launch(const Task& task, u64 name, u64 ts) noexcept {
    Event event(Kind::KERNEL_LAUNCH);
    event.record.ts = ts;
    event.record.device_type = static_cast<u8>(DeviceType::NPU);
    event.record.device = task.device;
    event.record.name = name;
    event.record.ptr = task.stream;
    event.record.attr = task.number;
    emit(event);
}

bool are_launches_wanted() noexcept { return is_recording() && is_wanted(Sort::KERNELS); }

// Not inline: a hook that has nothing to do should stay small.
__attribute__((noinline)) bool begin_launch() noexcept {
    if (t_launch.inside) return false;
    const Guard guard;
    if (!guard) return false;
    start_task_reports();
    if (t_launch.unread != kNoDevice) {
        const i16 device = t_launch.unread == kAsk ? current_npu() : t_launch.unread;
        t_launch.unread = kNoDevice;
        if (is_selected(DeviceType::NPU, device) && !read_kernel_times(device)) t_launch.unread = device;
    }
    t_launch.inside = true;
    t_launch.told = false;
    t_launch.name = 0;
    t_launch.began = monotonic_ns();
    return true;
}

// Watched blocks after a kernel. Not before: only its launch tells which it is.
__attribute__((noinline)) void look_after_launch(void* stream) noexcept {
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    Looked looked = {WatchBeside::KERNEL, 0, DeviceType::NPU, current_npu(), t_launch.name, 0, "", 0, 0};
    if (!looks_at_device(looked)) return;
    kernel_text(looked.name, looked.text, looked.bytes);
    looked.times = count_look(looked.name);
    settle_npu(stream);
    look_after(looked, nullptr, 0);
}

__attribute__((noinline)) void end_launch(int status, void* stream) noexcept {
    t_launch.inside = false;
    if (has_watches() && status == 0 && is_recording()) look_after_launch(stream);
    if (t_launch.told || status != 0 || !is_recording()) return;
    const Guard guard;
    if (!guard) return;
    report_lost("launch", "a launch without task report: its KERNEL_LAUNCH has no name, and its times are not known");
    const Task unknown = {current_npu(), 0, 0};
    if (is_selected(DeviceType::NPU, unknown.device)) emit_launch(unknown, 0, t_launch.began);
}

template <typename Signature, std::atomic<void*>& original, std::size_t stream>
struct Launch;

// stream: which of the arguments it is.
template <typename... Arguments, std::atomic<void*>& original, std::size_t stream>
struct Launch<int(Arguments...), original, stream> {
    static int call(Arguments... arguments) noexcept {
        const auto real = original_of<int (*)(Arguments...)>(original);
        if (!are_launches_wanted() || !begin_launch()) return real(arguments...);
        const int status = real(arguments...);
        end_launch(status, std::get<stream>(std::tie(arguments...)));
        return status;
    }
};

// Another device may be current from now on. That its log runs is seen to before the next launch, so that already that
// one has times.
template <typename Argument, std::atomic<void*>& original>
int change_device(Argument argument) noexcept {
    const int status = original_of<int (*)(Argument)>(original)(argument);
    t_launch.unread = kAsk;
    return status;
}

using Pointer = void*;
using RtKernel = int(Pointer stub, u32 blocks, Pointer args, u32 bytes, Pointer memory, Pointer stream);
using RtKernelWithHandle = int(Pointer handle, u64 tiling_key, u32 blocks, Pointer args, Pointer memory, Pointer stream,
                               Pointer config);
using RtKernelWithFlag = int(Pointer stub, u32 blocks, Pointer args, Pointer memory, Pointer stream, u32 flags,
                             Pointer config);
using RtAicpuKernel = int(u32 type, Pointer name, u32 blocks, Pointer args, Pointer memory, Pointer stream, u32 flags);
using RtByHandle = int(Pointer function, u32 blocks, Pointer args, Pointer stream);
using RtByHandleV2 = int(Pointer function, u32 blocks, Pointer args, Pointer stream, Pointer config);
using AclKernel = int(Pointer function, u32 blocks, Pointer args, std::size_t bytes, Pointer stream);
using AclKernelV2 = int(Pointer function, u32 blocks, Pointer args, std::size_t bytes, Pointer config, Pointer stream);
using AclKernelWithConfig = int(Pointer function, u32 blocks, Pointer stream, Pointer config, Pointer args,
                                Pointer reserved);
using AclKernelWithHostArgs = int(Pointer function, u32 blocks, Pointer stream, Pointer config, Pointer args,
                                  std::size_t bytes, Pointer holders, std::size_t holder_count);

std::atomic<void*> g_rt_kernel, g_rt_with_handle, g_rt_with_flag, g_rt_aicpu, g_rt_by_handle, g_rt_by_handle_v2, g_acl,
    g_acl_impl, g_acl_v2, g_acl_v2_impl, g_acl_with_config, g_acl_with_config_impl, g_acl_with_host_args,
    g_acl_with_host_args_impl;
std::atomic<void*> g_rt_set, g_rt_set_context, g_acl_set, g_acl_set_impl, g_acl_set_context, g_acl_set_context_impl;

#define LAUNCH(symbol, Signature, original, stream) \
    {symbol, reinterpret_cast<void*>(Launch<Signature, original, stream>::call), &original}
const Hook kHooks[] = {
    LAUNCH("rtKernelLaunch", RtKernel, g_rt_kernel, 5),
    LAUNCH("rtKernelLaunchWithHandleV2", RtKernelWithHandle, g_rt_with_handle, 5),
    LAUNCH("rtKernelLaunchWithFlagV2", RtKernelWithFlag, g_rt_with_flag, 4),
    LAUNCH("rtAicpuKernelLaunchExWithArgs", RtAicpuKernel, g_rt_aicpu, 5),
    LAUNCH("rtLaunchKernelByFuncHandle", RtByHandle, g_rt_by_handle, 3),
    LAUNCH("rtLaunchKernelByFuncHandleV2", RtByHandleV2, g_rt_by_handle_v2, 3),
    LAUNCH("aclrtLaunchKernel", AclKernel, g_acl, 4),
    LAUNCH("aclrtLaunchKernelImpl", AclKernel, g_acl_impl, 4),
    LAUNCH("aclrtLaunchKernelV2", AclKernelV2, g_acl_v2, 5),
    LAUNCH("aclrtLaunchKernelV2Impl", AclKernelV2, g_acl_v2_impl, 5),
    LAUNCH("aclrtLaunchKernelWithConfig", AclKernelWithConfig, g_acl_with_config, 2),
    LAUNCH("aclrtLaunchKernelWithConfigImpl", AclKernelWithConfig, g_acl_with_config_impl, 2),
    LAUNCH("aclrtLaunchKernelWithHostArgs", AclKernelWithHostArgs, g_acl_with_host_args, 2),
    LAUNCH("aclrtLaunchKernelWithHostArgsImpl", AclKernelWithHostArgs, g_acl_with_host_args_impl, 2),
#undef LAUNCH
#define CHANGE(symbol, Argument, original) \
    {symbol, reinterpret_cast<void*>(change_device<Argument, original>), &original}
    CHANGE("rtSetDevice", i32, g_rt_set),
    CHANGE("rtCtxSetCurrent", Pointer, g_rt_set_context),
    CHANGE("aclrtSetDevice", i32, g_acl_set),
    CHANGE("aclrtSetDeviceImpl", i32, g_acl_set_impl),
    CHANGE("aclrtSetCurrentContext", Pointer, g_acl_set_context),
    CHANGE("aclrtSetCurrentContextImpl", Pointer, g_acl_set_context_impl),
#undef CHANGE
    {"rtGetDevice", nullptr, &g_rt_get_device},
    {"aclrtGetDevice", nullptr, &g_acl_get_device},
    {"MsprofRegisterProfileCallback", nullptr, &g_register_callback, true},  // keeps pointers to us
    {"profSetProfCommand", nullptr, &g_set_prof_command},
    {"prof_drv_start", nullptr, &g_prof_start},
    {"prof_channel_read", nullptr, &g_prof_read, true},  // one of our threads is in it
    {"prof_stop", nullptr, &g_prof_stop},
    {"halGetDeviceInfo", nullptr, &g_device_info},
    {"aclrtGetSocName", nullptr, &g_soc_name},
};

// The child's reader is not there yet, and neither is a log of its own.
void begin_anew_in_child() noexcept { t_launch = {0, false, false, 0, kAsk}; }
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

i16 current_npu() noexcept {
    i32 device = -1;
    for (const auto* get : {&g_rt_get_device, &g_acl_get_device})
        if (const auto ask = original_of<int (*)(i32*)>(*get))
            if (ask(&device) == 0 && device >= 0) return physical_device(static_cast<i16>(device));
    return kNoDevice;
}

void task_launched(const Task& task, u64 name) noexcept {
    t_launch.told = true;
    t_launch.name = name;
    if (!is_selected(DeviceType::NPU, task.device)) return;
    // The task may have begun before it is reported: what counts is when the program asked for it.
    const u64 ts = t_launch.inside ? t_launch.began : monotonic_ns();
    if (!expect_kernel(task, {name, ts, current_tid(), memscope_current_step(), task.stream}))
        t_launch.unread = task.device;
    emit_launch(task, name, ts);
}

MEMSCOPE_SOURCE("launch", "CANN", "launches, names and times of an NPU's kernels", kHooks);

}  // namespace memscope
