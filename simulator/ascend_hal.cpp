// libascend_hal.so (simulated driver): device memory is host memory at recognisable addresses.
#include "cann.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace {
constexpr uint64_t MB = 1ull << 20;
// Device d's allocations live in [VA_BASE + d*VA_STRIDE, ...): like the real SVM range, never a host heap address.
constexpr uint64_t VA_BASE = 0x120000000000ull, VA_STRIDE = 0x2000000000ull /*128 GiB*/;
constexpr uint64_t HOST_BASE = 0x110000000000ull;
constexpr int MAX_DEV = 16;

uint64_t envU64(const char *n, uint64_t dflt) { const char *v = getenv(n); return v && *v ? strtoull(v, nullptr, 0) : dflt; }

struct Block { uint64_t size, mapped, flag; uint32_t dev; bool host; };
struct Resv { uint64_t size; };
struct Mapping { uint64_t size; drv_mem_handle *h; };

struct State {
    std::mutex mu;
    uint32_t ndev = (uint32_t)envU64("NPUSIM_DEVICES", 2);
    uint64_t total = envU64("NPUSIM_HBM_MB", 64 * 1024) * MB;
    uint64_t base = envU64("NPUSIM_HBM_BASE_MB", 0) * MB;  // "used by others"
    uint64_t used[MAX_DEV] = {}, bump[MAX_DEV + 1] = {};
    std::map<uint64_t, Block> blocks;
    std::map<uint64_t, Resv> resv;
    std::map<uint64_t, Mapping> maps;
    std::map<std::pair<int, uint64_t>, std::vector<uint64_t>> freeVa;  // (arena, mapped size) -> addresses, last in first out
};
State &S() { static State *s = new State; return *s; }

// arena: 0..15 device, 16 host
uint64_t takeVa(State &s, int arena, uint64_t mapped, uint64_t align)
{
    auto &v = s.freeVa[{arena, mapped}];
    if (!v.empty()) { uint64_t a = v.back(); v.pop_back(); return a; }
    uint64_t start = arena == MAX_DEV ? HOST_BASE : VA_BASE + arena * VA_STRIDE;
    uint64_t off = (s.bump[arena] + align - 1) & ~(align - 1);
    s.bump[arena] = off + mapped;
    return start + off;
}
}  // namespace

struct drv_mem_handle { int fd; uint64_t size; uint32_t dev; int refs; };

SIM_API int npusim_trace_on(void) { static int on = (int)envU64("NPUSIM_TRACE", 0); return on; }
SIM_API void npusim_trace(const char *fmt, ...)
{
    if (!npusim_trace_on()) return;
    char buf[1024];
    int n = snprintf(buf, sizeof buf, "[npusim %d] ", (int)syscall(SYS_gettid));
    va_list ap; va_start(ap, fmt);
    n += vsnprintf(buf + n, sizeof buf - n - 1, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof buf - 2) n = sizeof buf - 2;
    buf[n++] = '\n';
    (void)!write(2, buf, n);
}

SIM_API drvError_t drvGetDevNum(uint32_t *n) { *n = S().ndev; return DRV_OK; }

SIM_API drvError_t halMemAllocInner(void **pp, unsigned long long size, unsigned long long flag)
{
    if (!pp || !size) return DRV_INVALID_VALUE;
    State &s = S();
    bool host = (flag & MEMF_VIRT_MASK) == MEMF_HOST;
    uint32_t dev = flag & MEMF_DEVID;
    if (!host && dev >= s.ndev) return DRV_INVALID_DEVICE;
    uint64_t page = flag & MEMF_GIANT ? 1024 * MB : flag & MEMF_HUGE ? 2 * MB : 4096;
    uint64_t mapped = (size + page - 1) & ~(page - 1);
    std::lock_guard<std::mutex> g(s.mu);
    if (!host && s.base + s.used[dev] + mapped > s.total) {
        npusim_trace("halMemAlloc size=%llu flag=%#llx -> OUT OF MEMORY (dev %u used %llu of %llu)", size, flag, dev,
                     (unsigned long long)(s.base + s.used[dev]), (unsigned long long)s.total);
        return DRV_OOM;
    }
    int arena = host ? MAX_DEV : (int)dev;
    uint64_t va = takeVa(s, arena, mapped, page);
    void *p = mmap((void *)va, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) return DRV_OOM;
    s.blocks[va] = Block{size, mapped, flag, dev, host};
    if (!host) s.used[dev] += mapped;
    *pp = p;
    npusim_trace("halMemAlloc size=%llu flag=%#llx dev=%u -> %p", size, flag, dev, p);
    return DRV_OK;
}
SIM_API drvError_t halMemFreeInner(void *p)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    auto it = s.blocks.find((uint64_t)p);
    if (it == s.blocks.end()) { npusim_trace("halMemFree %p -> unknown", p); return DRV_INVALID_VALUE; }
    Block b = it->second;
    s.blocks.erase(it);
    munmap(p, b.mapped);
    if (!b.host) s.used[b.dev] -= b.mapped;
    s.freeVa[{b.host ? MAX_DEV : (int)b.dev, b.mapped}].push_back((uint64_t)p);
    npusim_trace("halMemFree %p size=%llu", p, (unsigned long long)b.size);
    return DRV_OK;
}
SIM_API drvError_t halMemAlloc(void **pp, unsigned long long size, unsigned long long flag) { return halMemAllocInner(pp, size, flag); }
SIM_API drvError_t halMemFree(void *p) { return halMemFreeInner(p); }

SIM_API drvError_t halMemCreateInner(drv_mem_handle **h, size_t size, const drv_mem_prop *prop, uint64_t)
{
    if (!h || !size || !prop) return DRV_INVALID_VALUE;
    State &s = S();
    uint32_t dev = prop->devid;
    if (dev >= s.ndev) return DRV_INVALID_DEVICE;
    std::lock_guard<std::mutex> g(s.mu);
    if (s.base + s.used[dev] + size > s.total) { npusim_trace("halMemCreate size=%zu -> OUT OF MEMORY", size); return DRV_OOM; }
    int fd = (int)syscall(SYS_memfd_create, "npusim", 0);
    if (fd < 0 || ftruncate(fd, (off_t)size)) return DRV_OOM;
    s.used[dev] += size;
    *h = new drv_mem_handle{fd, size, dev, 1};
    npusim_trace("halMemCreate size=%zu dev=%u -> %p", size, dev, (void *)*h);
    return DRV_OK;
}
SIM_API drvError_t halMemReleaseInner(drv_mem_handle *h)
{
    if (!h) return DRV_INVALID_VALUE;
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    npusim_trace("halMemRelease %p size=%llu", (void *)h, (unsigned long long)h->size);
    s.used[h->dev] -= h->size;
    close(h->fd);
    delete h;
    return DRV_OK;
}
SIM_API drvError_t halMemCreate(drv_mem_handle **h, size_t size, const drv_mem_prop *prop, uint64_t flag) { return halMemCreateInner(h, size, prop, flag); }
SIM_API drvError_t halMemRelease(drv_mem_handle *h) { return halMemReleaseInner(h); }

SIM_API drvError_t halMemAddressReserve(void **ptr, size_t size, size_t, void *addr, uint64_t)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    static uint64_t bump = 0x140000000000ull;
    uint64_t va = addr ? (uint64_t)addr : bump;
    void *p = mmap((void *)va, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) return DRV_OOM;
    if (!addr) bump += (size + 1024 * MB - 1) & ~(1024 * MB - 1);
    s.resv[(uint64_t)p] = Resv{size};
    *ptr = p;
    npusim_trace("halMemAddressReserve size=%zu -> %p", size, p);
    return DRV_OK;
}
SIM_API drvError_t halMemAddressFree(void *ptr)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    auto it = s.resv.find((uint64_t)ptr);
    if (it == s.resv.end()) return DRV_INVALID_VALUE;
    munmap(ptr, it->second.size);
    s.resv.erase(it);
    npusim_trace("halMemAddressFree %p", ptr);
    return DRV_OK;
}
SIM_API drvError_t halMemMap(void *ptr, size_t size, size_t off, drv_mem_handle *h, uint64_t)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    void *p = mmap(ptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, (off_t)off);
    if (p == MAP_FAILED) return DRV_INVALID_VALUE;
    s.maps[(uint64_t)ptr] = Mapping{size, h};
    npusim_trace("halMemMap %p size=%zu handle=%p", ptr, size, (void *)h);
    return DRV_OK;
}
SIM_API drvError_t halMemUnmap(void *ptr)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    auto it = s.maps.find((uint64_t)ptr);
    if (it == s.maps.end()) return DRV_INVALID_VALUE;
    mmap(ptr, it->second.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    s.maps.erase(it);
    npusim_trace("halMemUnmap %p", ptr);
    return DRV_OK;
}
SIM_API void npusim_hbm_info(uint32_t dev, uint64_t *used, uint64_t *total)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    *used = dev < MAX_DEV ? s.base + s.used[dev] : 0;
    *total = s.total;
}
SIM_API int npusim_ptr_info(const void *p, uint32_t *dev, uint64_t *size, uint64_t *flag)
{
    State &s = S();
    std::lock_guard<std::mutex> g(s.mu);
    auto it = s.blocks.upper_bound((uint64_t)p);
    if (it != s.blocks.begin()) {
        --it;
        if ((uint64_t)p < it->first + it->second.mapped) { *dev = it->second.dev; *size = it->second.size; *flag = it->second.flag; return 1; }
    }
    auto m = s.maps.upper_bound((uint64_t)p);
    if (m != s.maps.begin()) {
        --m;
        if ((uint64_t)p < m->first + m->second.size) { *dev = m->second.h->dev; *size = m->second.size; *flag = MEMF_DEV | MEMF_HBM; return 1; }
    }
    return 0;
}
SIM_API drvError_t halHostRegister(void *p, uint64_t, uint32_t, uint32_t, void **out) { if (out) *out = p; return DRV_OK; }
SIM_API drvError_t halHostUnregister(void *, uint32_t) { return DRV_OK; }
SIM_API drvError_t halGetAPIVersion(int *v) { if (v) *v = 0x072400; return DRV_OK; }
SIM_API drvError_t halGetDeviceInfo(uint32_t dev, int32_t module, int32_t info, int64_t *value)
{
    if (!value) return DRV_INVALID_VALUE;
    npusim_trace("halGetDeviceInfo dev=%u module=%d info=%d", dev, module, info);
    *value = 0;
    if (module == 0 && info == 1) *value = 5ll << 8;   // version: chip 910B family
    if (module == 0 && info == 25) *value = 50;        // oscillator, MHz
    if (module == 0 && info == 13) { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); *value = (t.tv_sec * 1000000000ll + t.tv_nsec) / 20; }  // system counter
    return DRV_OK;
}
// profiling channel of the driver: 64-byte task records, begin and end
#include <condition_variable>
#include <deque>
namespace { struct Rec { uint32_t w[16]; }; std::mutex pmu; std::condition_variable pcv; std::deque<Rec> pq[MAX_DEV]; bool pon[MAX_DEV]; }
SIM_API int prof_drv_start(unsigned dev, unsigned ch, void *) { npusim_trace("prof_drv_start dev=%u channel=%u", dev, ch); std::lock_guard<std::mutex> g(pmu); if (dev < MAX_DEV) pon[dev] = true; return 0; }
SIM_API int prof_stop(unsigned dev, unsigned) { npusim_trace("prof_stop dev=%u", dev); std::lock_guard<std::mutex> g(pmu); if (dev < MAX_DEV) pon[dev] = false; return 0; }
SIM_API int prof_channel_read(unsigned dev, unsigned, char *buf, unsigned len)
{
    std::unique_lock<std::mutex> l(pmu);
    if (dev >= MAX_DEV) return 0;
    pcv.wait_for(l, std::chrono::milliseconds(2), [&] { return !pq[dev].empty(); });
    unsigned n = 0;
    while (!pq[dev].empty() && n + sizeof(Rec) <= len) { memcpy(buf + n, &pq[dev].front(), sizeof(Rec)); pq[dev].pop_front(); n += sizeof(Rec); }
    return (int)n;
}
SIM_API void npusim_prof_record(uint32_t dev, uint16_t stream, uint16_t task, int end, uint64_t cnt)
{
    std::lock_guard<std::mutex> g(pmu);
    if (dev >= MAX_DEV || !pon[dev]) return;
    Rec r{}; r.w[0] = (uint32_t)(end ? 1 : 0) | 0x6bd30000u; r.w[1] = stream | ((uint32_t)task << 16); r.w[2] = (uint32_t)cnt; r.w[3] = (uint32_t)(cnt >> 32);
    pq[dev].push_back(r); pcv.notify_all();
}
