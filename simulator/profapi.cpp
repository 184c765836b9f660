// libprofapi.so: passes the runtime's reports on to the callbacks that a tool has registered.
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cstring>
#include <ctime>
#include "abi/profiling.h"
#include "calls.h"
#include "npusim.h"
#include "tasks.h"

namespace {

std::atomic<MsprofHashCallback> g_hash{nullptr};
std::atomic<MsprofCompactCallback> g_compact{nullptr};
std::atomic<bool> g_is_on{false}, g_expansion_told{false};

}  // namespace

SIM_API uint64_t MsprofSysCycleTime() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

namespace {

MsprofCompactInfo compact_info(uint32_t type, uint32_t length) {
    MsprofCompactInfo info{};
    info.magic = MSPROF_MAGIC;
    info.level = MSPROF_LEVEL_RUNTIME;
    info.type = type;
    info.thread = static_cast<uint32_t>(syscall(SYS_gettid));
    info.length = length;
    info.time = MsprofSysCycleTime();
    return info;
}

}  // namespace

int32_t MsprofRegisterProfileCallback(int32_t type, void* callback, uint32_t length) {
    SIM_CALL(-1);
    npusim_trace("MsprofRegisterProfileCallback type=%d", type);
    if (length != sizeof callback) return -1;
    if (type == MSPROF_HASH_ID) g_hash = reinterpret_cast<MsprofHashCallback>(callback);
    if (type == MSPROF_COMPACT_INFO) g_compact = reinterpret_cast<MsprofCompactCallback>(callback);
    return type == MSPROF_HASH_ID || type == MSPROF_COMPACT_INFO || type == MSPROF_API ? 0 : -1;
}

int32_t profSetProfCommand(void* command, uint32_t size) {
    SIM_CALL(-1);
    if (command == nullptr || size < sizeof(MsprofCommand)) return -1;
    MsprofCommand given;
    memcpy(&given, command, sizeof given);
    npusim_trace("profSetProfCommand switches=%#llx type=%u", static_cast<unsigned long long>(given.switches),
                 given.type);
    if (given.type == MSPROF_START && (given.switches & MSPROF_TASK_TIME) != 0) g_is_on = true;
    if (given.type == MSPROF_STOP) g_is_on = false;
    return 0;
}

void npusim_task_launched(const SimTask* task, const char* name) {
    const MsprofCompactCallback compact = g_compact;
    const MsprofHashCallback hash = g_hash;
    if (!g_is_on || compact == nullptr || hash == nullptr) return;
    constexpr uint32_t kAging = 1;
    if (npusim_streams_expanded() && !g_expansion_told.exchange(true)) {
        MsprofCompactInfo info = compact_info(MSPROF_STREAM_EXPAND, sizeof info.stream_expand);
        info.stream_expand = 1;
        compact(kAging, &info, sizeof info);
    }
    MsprofCompactInfo info = compact_info(MSPROF_TASK_TRACK, sizeof info.task);
    // The runtime names the driver's device, after ASCEND_RT_VISIBLE_DEVICES.
    info.task.device = static_cast<uint16_t>(task->device);
    info.task.stream = task->stream;
    info.task.task = task->task;
    info.task.kernel_name = hash(name, strlen(name));
    compact(kAging, &info, sizeof info);
}

// What the rest of the stack reports and no tool has asked for yet.
SIM_API uint64_t MsprofGetHashId(const char* text, size_t length) {
    const MsprofHashCallback hash = g_hash;
    return hash != nullptr ? hash(text, length) : 0;
}
SIM_API int32_t MsprofReportCompactInfo(uint32_t aging, const void* info, uint32_t length) {
    const MsprofCompactCallback compact = g_compact;
    return compact != nullptr ? compact(aging, info, length) : 0;
}
SIM_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
SIM_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
SIM_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
