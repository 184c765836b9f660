// What the parts of the kernel sources say to each other.
//
//   launch.cpp        the launch entry points, in the callers' GOT; makes the KERNEL_LAUNCH records
//   msprof.cpp        the runtime's task reports: which device, stream, task and kernel a launch became
//   kernel_times.cpp  the driver's log of when each task began and ended, read by a thread of its own
#pragma once

#include "hook/patch.h"

namespace memscope {

// One task of a card. `stream` and `number` as the runtime reports them; the device is the driver's (physical) one.
struct Task {
    i16 device;
    u32 stream;
    u32 number;
};

// The card of the calling thread, as the runtime says; kNoDevice when it has none. Call inside a Guard.
i16 current_npu() noexcept;

// Launched by this thread. `name`: string id of the kernel, 0 when not known. Call inside a Guard, while recording.
void task_launched(const Task& task, u64 name) noexcept;

// Asks for the runtime's task reports, at the first call. Call inside a Guard.
void start_task_reports() noexcept;

u64 refused_names() noexcept;

// The text of a kernel's name, which stays where it is; unchanged where it is not known.
void kernel_text(u64 name, const char*& text, u32& bytes) noexcept;

// Task and stream numbers have more bits from Ascend 950 on, and there a task's number alone names it.
bool has_wide_tasks() noexcept;

// --- kernel_times.cpp ------------------------------------------------------------------------------------------

// What a launch hands over to whoever sees its task begin and end.
struct Launched {
    u64 name;
    u64 ts;
    u32 tid;
    u32 step;
    u32 stream;  // the log has none since Ascend 950
};

// Starts the log of a device and the reader, unless they run. False: there is no driver with a log yet, ask again. Call
// inside a Guard, before the launch.
bool read_kernel_times(i16 device) noexcept;
// False: nobody has started (or tried to start) the log of the task's device yet.
bool expect_kernel(const Task& task, const Launched& launched) noexcept;
// The runtime numbers its streams above 2047 (report 804).
void set_streams_expanded(bool expanded) noexcept;
// Reads what is left, stops the logs and ends the reader. Waits for it 200 ms at most. A later launch starts anew.
void stop_kernel_times() noexcept;

// Functions that are looked up, never replaced; launch.cpp has them in its table.
extern std::atomic<void*> g_register_callback, g_set_prof_command, g_prof_start, g_prof_read, g_prof_stop,
    g_device_info, g_soc_name;

}  // namespace memscope

extern "C" {

// For tests and `doctor`.
struct memscope_kernel_stats {
    unsigned long long launched;   // tasks reported
    unsigned long long timed;      // of these, seen to end; the others still run, or their times were missed
    unsigned long long forgotten;  // given up: too many were waiting, or the number came round again
    unsigned long long foreign;    // log entries that belong to no launch we know (copies, events)
    unsigned long long names_refused;
    int reading;  // the reader thread exists
};
void memscope_get_kernel_stats(memscope_kernel_stats* out);
}
