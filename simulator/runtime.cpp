// libruntime.so (simulated): devices, contexts, streams, events on top of the simulated driver.
#include "cann.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

SIM_API void npusim_prof_task(uint16_t dev, uint16_t stream, uint16_t task, const char *name);
SIM_API void npusim_prof_record(uint32_t dev, uint16_t stream, uint16_t task, int end, uint64_t cnt);
namespace {
thread_local int32_t tDev = -1;
bool asyncMode() { static bool a = getenv("NPUSIM_ASYNC") && atoi(getenv("NPUSIM_ASYNC")); return a; }
int64_t nowNs() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Stream {
    int32_t id, dev;
    std::atomic<uint32_t> task{1};
    std::mutex mu;
    std::condition_variable cv;
    std::deque<std::function<void()>> q;
    bool busy = false, quit = false;
    std::thread th;
    void loop()
    {
        tDev = dev;
        std::unique_lock<std::mutex> l(mu);
        for (;;) {
            cv.wait(l, [&] { return quit || !q.empty(); });
            if (q.empty()) return;
            auto f = std::move(q.front());
            q.pop_front();
            busy = true;
            l.unlock();
            f();
            f = nullptr;
            l.lock();
            busy = false;
            cv.notify_all();
        }
    }
    void run(std::function<void()> f)
    {
        if (!asyncMode()) { f(); return; }
        std::lock_guard<std::mutex> l(mu);
        if (!th.joinable()) th = std::thread([this] { loop(); });
        q.push_back(std::move(f));
        cv.notify_all();
    }
    void sync() { if (!asyncMode()) return; std::unique_lock<std::mutex> l(mu); cv.wait(l, [&] { return q.empty() && !busy; }); }
    bool idle() { if (!asyncMode()) return true; std::lock_guard<std::mutex> l(mu); return q.empty() && !busy; }
};
struct Event {
    std::mutex mu; std::condition_variable cv;
    uint64_t recorded = 0, done = 0;  // generation numbers
    int64_t tsNs = 0;
};
struct Dev { std::mutex mu; std::vector<Stream *> streams; Stream *dflt = nullptr; int ctx; };
Dev gDev[16];
std::atomic<int32_t> gStreamId{2};
Stream *defStream()
{
    int d = tDev < 0 ? 0 : tDev;
    std::lock_guard<std::mutex> g(gDev[d].mu);
    if (!gDev[d].dflt) { gDev[d].dflt = new Stream; gDev[d].dflt->id = 0; gDev[d].dflt->dev = d; gDev[d].streams.push_back(gDev[d].dflt); }
    return gDev[d].dflt;
}
Stream *S(void *s) { return s ? (Stream *)s : defStream(); }
}  // namespace

enum { RT_OOM = 207001, RT_PARAM_INVALID = 107000, RT_INVALID_DEVICE = 107001, RT_CONTEXT_NULL = 107002 };

SIM_API void npusim_stream_run(void *stream, void (*fn)(void *), void *ctx) { S(stream)->run([=] { fn(ctx); }); }

SIM_API rtError_t rtGetDeviceCount(int32_t *n) { uint32_t c = 0; drvGetDevNum(&c); *n = (int32_t)c; return 0; }
SIM_API rtError_t rtSetDevice(int32_t dev)
{
    int32_t n; rtGetDeviceCount(&n);
    if (dev < 0 || dev >= n) return RT_INVALID_DEVICE;
    tDev = dev;
    return 0;
}
SIM_API rtError_t rtGetDevice(int32_t *dev) { if (tDev < 0) return RT_CONTEXT_NULL; *dev = tDev; return 0; }
SIM_API rtError_t rtDeviceReset(int32_t) { return 0; }
SIM_API rtError_t rtCtxGetCurrent(void **c) { if (tDev < 0) return RT_CONTEXT_NULL; *c = &gDev[tDev].ctx; return 0; }
SIM_API rtError_t rtCtxSetCurrent(void *c)
{
    for (int i = 0; i < 16; i++) if (c == &gDev[i].ctx) { tDev = i; return 0; }
    return RT_PARAM_INVALID;
}
static uint64_t rtFlag(int dev, uint32_t type, uint64_t size, uint16_t module)
{
    (void)type;
    uint64_t f = MEMF_DEV | MEMF_HBM | MEMF_ALIGN9 | (uint64_t)dev | ((uint64_t)module << MEMF_MODULE_SHIFT);
    return size > (1u << 20) ? f | MEMF_HUGE : f;
}
SIM_API rtError_t rtMalloc(void **p, uint64_t size, uint32_t type, uint16_t module)
{
    if (tDev < 0) return RT_CONTEXT_NULL;
    uint64_t f = rtFlag(tDev, type, size, module);
    drvError_t r = halMemAlloc(p, size, f);
    if (r == DRV_OOM && (f & MEMF_HUGE)) r = halMemAlloc(p, size, f & ~MEMF_HUGE);  // the real one falls back to normal pages
    return r == 0 ? 0 : r == DRV_OOM ? RT_OOM : RT_PARAM_INVALID;
}
SIM_API rtError_t rtFree(void *p) { return halMemFree(p) ? RT_PARAM_INVALID : 0; }
SIM_API rtError_t rtMallocHost(void **p, uint64_t size, uint16_t module)
{
    return halMemAlloc(p, size, MEMF_HOST | MEMF_ALIGN9 | ((uint64_t)module << MEMF_MODULE_SHIFT)) ? RT_OOM : 0;
}
SIM_API rtError_t rtFreeHost(void *p) { return halMemFree(p) ? RT_PARAM_INVALID : 0; }

SIM_API rtError_t rtStreamCreate(void **s, int32_t)
{
    if (tDev < 0) return RT_CONTEXT_NULL;
    auto *st = new Stream;
    st->id = gStreamId++; st->dev = tDev;
    std::lock_guard<std::mutex> g(gDev[tDev].mu);
    gDev[tDev].streams.push_back(st);
    *s = st;
    npusim_trace("rtStreamCreate dev=%d id=%d -> %p", tDev, st->id, (void *)st);
    return 0;
}
SIM_API rtError_t rtStreamSynchronize(void *s) { S(s)->sync(); return 0; }
SIM_API rtError_t rtStreamDestroy(void *s)
{
    if (!s) return RT_PARAM_INVALID;
    auto *st = (Stream *)s;
    st->sync();
    { std::lock_guard<std::mutex> l(st->mu); st->quit = true; st->cv.notify_all(); }
    if (st->th.joinable()) st->th.join();
    std::lock_guard<std::mutex> g(gDev[st->dev].mu);
    auto &v = gDev[st->dev].streams;
    for (size_t i = 0; i < v.size(); i++) if (v[i] == st) { v.erase(v.begin() + i); break; }
    delete st;
    return 0;
}
SIM_API rtError_t rtStreamQuery(void *s) { return S(s)->idle() ? 0 : 1; }
SIM_API rtError_t rtGetStreamId(void *s, int32_t *id) { *id = S(s)->id; return 0; }
SIM_API rtError_t rtDeviceSynchronize(void)
{
    if (tDev < 0) return RT_CONTEXT_NULL;
    std::vector<Stream *> v;
    { std::lock_guard<std::mutex> g(gDev[tDev].mu); v = gDev[tDev].streams; }
    for (auto *s : v) s->sync();
    return 0;
}
// an event may be destroyed while records or waits of it are still queued: those keep the state alive
typedef std::shared_ptr<Event> EventP;
static EventP &E(void *ev) { return *(EventP *)ev; }
SIM_API rtError_t rtEventCreate(void **e) { *e = new EventP(new Event); return 0; }
SIM_API rtError_t rtEventDestroy(void *e) { delete (EventP *)e; return 0; }
SIM_API rtError_t rtEventRecord(void *ev, void *s)
{
    EventP e = E(ev);
    uint64_t gen;
    { std::lock_guard<std::mutex> l(e->mu); gen = ++e->recorded; }
    S(s)->run([e, gen] {
        std::lock_guard<std::mutex> l(e->mu);
        if (gen > e->done) e->done = gen;
        e->tsNs = nowNs();
        e->cv.notify_all();
    });
    return 0;
}
SIM_API rtError_t rtEventReset(void *, void *) { return 0; }
SIM_API int npusim_event_complete(void *ev) { EventP e = E(ev); std::lock_guard<std::mutex> l(e->mu); return e->done >= e->recorded; }
SIM_API rtError_t rtEventSynchronize(void *ev)
{
    EventP e = E(ev);
    std::unique_lock<std::mutex> l(e->mu);
    e->cv.wait(l, [&] { return e->done >= e->recorded; });
    return 0;
}
SIM_API rtError_t rtStreamWaitEvent(void *s, void *ev)
{
    EventP e = E(ev);
    uint64_t gen;
    { std::lock_guard<std::mutex> l(e->mu); gen = e->recorded; }
    S(s)->run([e, gen] { std::unique_lock<std::mutex> l(e->mu); e->cv.wait(l, [&] { return e->done >= gen; }); });
    return 0;
}
SIM_API int64_t npusim_event_ns(void *ev) { EventP e = E(ev); std::lock_guard<std::mutex> l(e->mu); return e->tsNs; }

// ---- kernels: a function handle is a SimKernel ----
static void launch(void *hdl, void *stm)
{
    auto *k = (SimKernel *)hdl;
    if (!k || k->magic != SIM_KERNEL_MAGIC) { npusim_trace("kernel launch of an unknown handle %p", hdl); return; }
    npusim_trace("kernel %s stream=%p", k->name, stm);
    SimKernel c = *k;
    Stream *st = S(stm);
    uint32_t dev = (uint32_t)st->dev;
    uint16_t sid = (uint16_t)st->id, tid = (uint16_t)st->task++;
    npusim_prof_task((uint16_t)dev, sid, tid, c.name);
    st->run([=] {
        npusim_prof_record(dev, sid, tid, 0, (uint64_t)nowNs() / 20);
        if (c.run) c.run(c.ctx);
        npusim_prof_record(dev, sid, tid, 1, (uint64_t)nowNs() / 20);
    });
}
SIM_API rtError_t rtKernelLaunchWithHandleV2(void *hdl, const uint64_t, uint32_t, void *, void *, void *stm, const void *) { launch(hdl, stm); return 0; }
SIM_API rtError_t rtLaunchKernelByFuncHandle(void *fh, uint32_t, void *, void *stm) { launch(fh, stm); return 0; }
SIM_API rtError_t rtLaunchKernelByFuncHandleV2(void *fh, uint32_t, void *, void *stm, const void *) { launch(fh, stm); return 0; }
SIM_API rtError_t rtKernelLaunch(const void *stub, uint32_t, void *, uint32_t, void *, void *stm) { launch((void *)stub, stm); return 0; }
SIM_API rtError_t rtKernelLaunchWithFlagV2(const void *stub, uint32_t, void *, void *, void *stm, uint32_t, const void *) { launch((void *)stub, stm); return 0; }
SIM_API rtError_t rtAicpuKernelLaunchExWithArgs(uint32_t, const char *, uint32_t, const void *, void *, void *, uint32_t) { return 0; }
