// Profiling: what libprofapi.so hands to a tool's callbacks, and the records of the driver's channel.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

// Callbacks a tool registers.
enum : int32_t { MSPROF_COMPACT_INFO = 4, MSPROF_API = 9, MSPROF_HASH_ID = 12 };
typedef uint64_t (*MsprofHashCallback)(const char* text, size_t length);
typedef int32_t (*MsprofCompactCallback)(uint32_t aging, const void* info, uint32_t length);

// First words of the structure that profSetProfCommand takes; paths and parameters follow.
enum : uint64_t { MSPROF_TASK_TIME = 0x800, MSPROF_RUNTIME_TRACE = 0x4000000 };
enum : uint32_t { MSPROF_START = 1, MSPROF_STOP = 2 };
struct MsprofCommand {
    uint64_t switches;
    uint64_t switches_high;
    uint32_t device_count;
    uint32_t devices[64];
    uint32_t model;
    uint32_t type;
};

// MsprofCompactInfo.
enum : uint16_t { MSPROF_MAGIC = 0x5a5a, MSPROF_LEVEL_RUNTIME = 5000 };
enum : uint32_t { MSPROF_TASK_TRACK = 802, MSPROF_STREAM_EXPAND = 804 };
struct MsprofTaskTrack {
    uint16_t device;
    uint16_t stream;
    uint32_t task;  // the low 16 bits; all of them on A5
    uint64_t task_type;
    uint64_t kernel_name;  // hash id
};
struct MsprofCompactInfo {
    uint16_t magic;
    uint16_t level;
    uint32_t type;
    uint32_t thread;
    uint32_t length;
    uint64_t time;
    union {
        uint8_t bytes[40];
        MsprofTaskTrack task;
        uint64_t stream_expand;
    };
};
static_assert(sizeof(MsprofCompactInfo) == 64, "layout of the profiler's compact info");

SIM_API int32_t MsprofRegisterProfileCallback(int32_t type, void* callback, uint32_t length);
SIM_API int32_t profSetProfCommand(void* command, uint32_t size);

// The driver's channel of task records.
enum : unsigned { PROF_CHANNEL_TASKS = 50 };
struct ProfStart {
    uint32_t channel_type;
    uint32_t sample_period;
    uint32_t real_time;
    void* user_data;  // u32 switches; the first turns task records on
    uint32_t user_data_size;
};
enum : uint32_t { PROF_TASK_BEGIN = 0, PROF_TASK_END = 1, PROF_RECORD_MAGIC = 0x6bd3 };

// A2 and A3 (Ascend910B, 910_93): 64 bytes.
struct ProfRecordA2 {
    uint32_t function : 6, count : 4, sqe_type : 6, magic : 16;
    uint16_t stream, task;
    uint32_t clock_low, clock_high;
    uint32_t accelerator;
    uint32_t reserved[11];
};
static_assert(sizeof(ProfRecordA2) == 64, "layout of a task record");

// A5 (Ascend950): 32 bytes, no stream.
struct ProfRecordA5 {
    uint32_t function : 6, count : 4, sqe_type : 6, magic : 16;
    uint32_t task;
    uint64_t clock;
    uint32_t accelerator;
    uint32_t reserved[3];
};
static_assert(sizeof(ProfRecordA5) == 32, "layout of a task record");
