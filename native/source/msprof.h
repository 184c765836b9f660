// Layouts of libprofapi.so (the CANN profiling interface), as hicann/runtime declares them.
#pragma once

#include "record/record.h"

namespace memscope::msprof {

inline constexpr i32 kCompactInfoCallback = 4;  // i32 (u32 aging, const void* data, u32 bytes)
inline constexpr i32 kHashIdCallback = 12;      // u64 (const char* text, size_t bytes)

// MsprofCompactInfo without its union.
struct CompactHeader {
    u16 magic;
    u16 level;
    u32 type;
    u32 thread;
    u32 bytes;  // of what follows
    u64 ts;
};
static_assert(sizeof(CompactHeader) == 24);
inline constexpr u16 kMagic = 0x5a5a;
inline constexpr u16 kRuntimeLevel = 5000;
inline constexpr u32 kTaskTrack = 802;
inline constexpr u32 kStreamExpand = 804;  // first byte: 1 when streams are numbered above 2047

// MsprofRuntimeTrack as far as all versions agree. The device is the driver's: the runtime has turned the program's
// number into it before it made its device object, whose number is reported (Runtime::ChgUserDevIdToDeviceId).
struct TaskTrack {
    u16 device;
    u16 stream;
    u32 task;  // before Ascend 950: the number in the low half, how often it came round in the high half
    u64 type;
    u64 name;  // what the hash callback returned; 0: no kernel
};
static_assert(sizeof(TaskTrack) == 24);

// Argument of profSetProfCommand.
struct Command {
    u64 switches;
    u64 more_switches;
    u32 device_count;
    u32 devices[64];
    u32 model;
    u32 type;
    u32 cache;
    struct {
        u32 path_bytes;
        u32 storage_limit;
        u32 data_bytes;
        char path[1024];
        char data[4096];
    } parameters;
};
inline constexpr u64 kTaskTime = 0x800;
inline constexpr u64 kRuntimeTrace = 0x4000000;
inline constexpr u32 kAllModels = 0xFFFFFFFF;
inline constexpr u32 kStart = 1;

}  // namespace memscope::msprof
