// libprofapi.so (simulated): passes the runtime's task reports on to the callbacks a tool has registered.
#include "cann.h"
#include <cstring>
#include <ctime>
#include <mutex>
typedef uint64_t (*HashFn)(const char *, size_t);
typedef int32_t (*CompactFn)(uint32_t, const void *, uint32_t);
static HashFn gHash; static CompactFn gCompact; static int gOn;
SIM_API int32_t MsprofRegisterProfileCallback(int32_t type, void *fn, uint32_t)
{
    npusim_trace("MsprofRegisterProfileCallback type=%d", type);
    if (type == 12) gHash = (HashFn)fn;
    if (type == 4) gCompact = (CompactFn)fn;
    return 0;
}
SIM_API int32_t profSetProfCommand(void *cmd, uint32_t size) { npusim_trace("profSetProfCommand size=%u", size); uint64_t sw; memcpy(&sw, cmd, 8); gOn = (sw & 0x800) != 0; return 0; }
SIM_API uint64_t MsprofGetHashId(const char *s, size_t n) { return gHash ? gHash(s, n) : 0; }
SIM_API int32_t MsprofReportCompactInfo(uint32_t aging, const void *d, uint32_t n) { return gCompact ? gCompact(aging, d, n) : 0; }
SIM_API int32_t MsprofReportApi(uint32_t, const void *) { return 0; }
SIM_API int32_t MsprofReportAdditionalInfo(uint32_t, const void *, uint32_t) { return 0; }
SIM_API int32_t MsprofRegisterCallback(uint32_t, void *) { return 0; }
SIM_API uint64_t MsprofSysCycleTime() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec; }
// called by the simulated runtime for every task
SIM_API void npusim_prof_task(uint16_t dev, uint16_t stream, uint16_t task, const char *name)
{
    if (!gOn || !gCompact || !gHash) return;
    struct { uint16_t magic, level; uint32_t type, tid, len; uint64_t ts; struct { uint16_t dev, stream; uint32_t task; uint64_t type, name; uint8_t pad[16]; } d; } i{};
    static_assert(sizeof i == 64, "");
    i.magic = 0x5a5a; i.level = 5000; i.type = 802; i.len = 24; i.ts = MsprofSysCycleTime();
    i.d.dev = dev; i.d.stream = stream; i.d.task = task; i.d.name = gHash(name, strlen(name));
    gCompact(1, &i, sizeof i);
}
