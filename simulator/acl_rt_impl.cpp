// libacl_rt_impl.so (simulated AscendCL runtime part). Each ACL(...) line also yields a forwarding function in
// libascendcl.so (see gen.py), as in the real package: aclrtX -> aclrtXImpl -> rtX -> halX.
#include "cann.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#define ACL(R, name, params, args) SIM_API R name##Impl params
typedef int aclError;
enum { OK = 0, E_PARAM = 100000, E_UNINIT = 100001, E_REPEAT = 100002, E_UNSUPPORTED = 200001, E_OOM = 207001, E_FEATURE = 207000 };

extern "C" {
rtError_t rtDeviceReset(int32_t); rtError_t rtCtxGetCurrent(void **); rtError_t rtCtxSetCurrent(void *);
rtError_t rtStreamQuery(void *); rtError_t rtDeviceSynchronize(void); rtError_t rtEventCreate(void **); rtError_t rtEventDestroy(void *);
rtError_t rtEventRecord(void *, void *); rtError_t rtEventReset(void *, void *); rtError_t rtEventSynchronize(void *);
rtError_t rtStreamWaitEvent(void *, void *); int npusim_event_complete(void *); int64_t npusim_event_ns(void *);
}
enum { APP_MODULE = 33 };
static int gInit = 0;

ACL(aclError, aclInit, (const char *cfg), (cfg)) { npusim_trace("aclInit %s", cfg ? cfg : "-"); if (gInit) return E_REPEAT; gInit = 1; return OK; }
ACL(aclError, aclFinalize, (void), ()) { npusim_trace("aclFinalize"); gInit = 0; return OK; }
ACL(const char *, aclGetRecentErrMsg, (void), ()) { return ""; }
ACL(const char *, aclrtGetSocName, (void), ()) { const char *v = getenv("NPUSIM_SOC"); return v && *v ? v : "Ascend910B2"; }
ACL(aclError, aclrtGetVersion, (int32_t *a, int32_t *b, int32_t *c), (a, b, c)) { *a = 1; *b = 13; *c = 0; return OK; }

// ---- device ----
ACL(aclError, aclrtSetDevice, (int32_t d), (d)) { npusim_trace("aclrtSetDevice %d", d); return rtSetDevice(d); }
ACL(aclError, aclrtGetDevice, (int32_t *d), (d)) { return rtGetDevice(d); }
ACL(aclError, aclrtResetDevice, (int32_t d), (d)) { npusim_trace("aclrtResetDevice %d", d); return rtDeviceReset(d); }
ACL(aclError, aclrtGetDeviceCount, (uint32_t *n), (n)) { return drvGetDevNum(n); }
ACL(aclError, aclrtGetCurrentContext, (void **c), (c)) { return rtCtxGetCurrent(c); }
ACL(aclError, aclrtSetCurrentContext, (void *c), (c)) { return rtCtxSetCurrent(c); }
ACL(aclError, aclrtSynchronizeDevice, (void), ()) { return rtDeviceSynchronize(); }
ACL(aclError, aclrtSynchronizeDeviceWithTimeout, (int32_t t), (t)) { (void)t; return rtDeviceSynchronize(); }
ACL(aclError, aclrtDeviceCanAccessPeer, (int32_t *can, int32_t a, int32_t b), (can, a, b)) { *can = a != b; return OK; }
ACL(aclError, aclrtDeviceEnablePeerAccess, (int32_t p, uint32_t f), (p, f)) { (void)p; (void)f; return OK; }
ACL(aclError, aclrtGetPrimaryCtxState, (int32_t d, uint32_t *f, int32_t *a), (d, f, a))
{
    int32_t cur; if (f) *f = 0;
    *a = rtGetDevice(&cur) == 0 && cur == d; return OK;
}
ACL(aclError, aclrtDeviceGetBareTgid, (int32_t *pid), (pid)) { *pid = (int32_t)getpid(); return OK; }
ACL(aclError, aclGetCannAttributeList, (const int **l, size_t *n), (l, n)) { static const int a[] = {0, 1, 2}; *l = a; *n = 3; return OK; }
ACL(aclError, aclGetCannAttribute, (int a, int32_t *v), (a, v)) { *v = a == 2 ? 0 : 1; return OK; }
ACL(aclError, aclGetDeviceCapability, (uint32_t d, int info, int64_t *v), (d, info, v))
{
    (void)d; *v = info == 0 ? 24 : info == 1 ? 48 : info == 2 ? 192ll << 20 : 0; return OK;
}
ACL(aclError, aclrtGetDeviceInfo, (uint32_t d, int attr, int64_t *v), (d, attr, v)) 
{
    uint64_t used, total; npusim_hbm_info(d, &used, &total);
    npusim_trace("aclrtGetDeviceInfo attr=%d", attr);
    *v = attr == 101 || attr == 102 ? 24 : attr == 201 ? 48 : attr == 301 ? (int64_t)total : attr == 302 ? 192ll << 20 : 0;
    return OK;
}
ACL(aclError, aclrtGetLogicDevIdByUserDevId, (const int32_t u, int32_t *l), (u, l)) { *l = u; return OK; }
ACL(aclError, aclrtSetDeviceSatMode, (int m), (m)) { (void)m; return OK; }
ACL(aclError, aclrtSetOpExecuteTimeOut, (uint32_t t), (t)) { (void)t; return OK; }
ACL(aclError, aclrtSetOpExecuteTimeOutV2, (uint64_t t, uint64_t *a), (t, a)) { *a = t; return OK; }
ACL(aclError, aclrtSetOpWaitTimeout, (uint32_t t), (t)) { (void)t; return OK; }
ACL(aclError, aclrtGetLastError, (int l), (l)) { (void)l; return OK; }
ACL(aclError, aclrtPeekAtLastError, (int l), (l)) { (void)l; return OK; }
ACL(aclError, aclrtGetDeviceUtilizationRate, (int32_t d, int32_t *u), (d, u))
{
    uint64_t used, total; npusim_hbm_info((uint32_t)d, &used, &total);
    u[0] = u[1] = u[2] = 0; u[3] = (int32_t)(used * 100 / total); return OK;
}
// ---- memory ----
ACL(aclError, aclrtMalloc, (void **p, size_t n, int pol), (p, n, pol))
{
    if (!p || !n) return E_PARAM;
    return rtMalloc(p, ((n + 31) & ~31ull) + 32, (uint32_t)pol, APP_MODULE);
}
ACL(aclError, aclrtMallocAlign32, (void **p, size_t n, int pol), (p, n, pol))
{
    if (!p || !n) return E_PARAM;
    return rtMalloc(p, (n + 31) & ~31ull, (uint32_t)pol, APP_MODULE);
}
ACL(aclError, aclrtFree, (void *p), (p)) { return p ? rtFree(p) : E_PARAM; }
ACL(aclError, aclrtMallocHost, (void **p, size_t n), (p, n)) { return n ? rtMallocHost(p, n, APP_MODULE) : E_PARAM; }
ACL(aclError, aclrtMallocHostWithCfg, (void **p, uint64_t n, void *cfg), (p, n, cfg)) { (void)cfg; return n ? rtMallocHost(p, n, APP_MODULE) : E_PARAM; }
ACL(aclError, aclrtFreeHost, (void *p), (p)) { return p ? rtFreeHost(p) : E_PARAM; }
ACL(aclError, aclrtHostRegister, (void *p, uint64_t n, int t, void **d), (p, n, t, d)) { (void)t; int32_t dev = 0; rtGetDevice(&dev); return halHostRegister(p, n, 0, (uint32_t)dev, d); }
ACL(aclError, aclrtHostRegisterV2, (void *p, uint64_t n, uint32_t f), (p, n, f)) { int32_t dev = 0; rtGetDevice(&dev); return halHostRegister(p, n, f, (uint32_t)dev, nullptr); }
ACL(aclError, aclrtHostUnregister, (void *p), (p)) { return halHostUnregister(p, 0); }
ACL(aclError, aclrtGetMemInfo, (int attr, size_t *fr, size_t *tot), (attr, fr, tot))
{
    (void)attr; int32_t d; if (rtGetDevice(&d)) return 107002;
    uint64_t used, total; npusim_hbm_info((uint32_t)d, &used, &total);
    *fr = total - used; *tot = total; return OK;
}
ACL(aclError, aclrtGetMemUsageInfo, (int32_t d, void *i, size_t n, size_t *o), (d, i, n, o)) { (void)d; (void)i; (void)n; *o = 0; return OK; }
struct PtrAttr { uint32_t id; int type; uint32_t pageSize; uint32_t rsv[4]; };
ACL(aclError, aclrtPointerGetAttributes, (const void *p, PtrAttr *a), (p, a))
{
    uint32_t dev; uint64_t sz, fl;
    memset(a, 0, sizeof *a);
    if (!npusim_ptr_info(p, &dev, &sz, &fl)) { a->type = 2; return OK; }  // unregistered
    a->id = dev; a->type = (fl & MEMF_VIRT_MASK) == MEMF_HOST ? 0 : 1; a->pageSize = fl & MEMF_HUGE ? 2u << 20 : 4096;
    return OK;
}
ACL(aclError, aclrtReserveMemAddress, (void **v, size_t n, size_t al, void *ex, uint64_t f), (v, n, al, ex, f)) { return halMemAddressReserve(v, n, al, ex, f) ? E_OOM : OK; }
ACL(aclError, aclrtReleaseMemAddress, (void *v), (v)) { return halMemAddressFree(v) ? E_PARAM : OK; }
struct PhysProp { int handleType, allocationType, memAttr; uint32_t id; int type; uint64_t reserve; };
ACL(aclError, aclrtMallocPhysical, (void **h, size_t n, const PhysProp *prop, uint64_t f), (h, n, prop, f))
{
    drv_mem_prop p{1, prop->id, APP_MODULE, 1, 0, prop->reserve};
    drvError_t r = halMemCreate((drv_mem_handle **)h, n, &p, f);
    return r == 0 ? OK : r == DRV_OOM ? E_OOM : E_PARAM;
}
ACL(aclError, aclrtFreePhysical, (void *h), (h)) { return halMemRelease((drv_mem_handle *)h) ? E_PARAM : OK; }
ACL(aclError, aclrtMapMem, (void *v, size_t n, size_t off, void *h, uint64_t f), (v, n, off, h, f)) { return halMemMap(v, n, off, (drv_mem_handle *)h, f) ? E_PARAM : OK; }
ACL(aclError, aclrtUnmapMem, (void *v), (v)) { return halMemUnmap(v) ? E_PARAM : OK; }
ACL(aclError, aclrtMemcpy, (void *d, size_t m, const void *s, size_t n, int k), (d, m, s, n, k))
{
    if (n > m) return E_PARAM;
    npusim_trace("aclrtMemcpy kind=%d %zu bytes", k, n);
    memmove(d, s, n); return OK;
}
struct CpyCtx { void *d; const void *s; size_t n; };
ACL(aclError, aclrtMemcpyAsync, (void *d, size_t m, const void *s, size_t n, int k, void *st), (d, m, s, n, k, st))
{
    if (n > m) return E_PARAM;
    npusim_trace("aclrtMemcpyAsync kind=%d %zu bytes stream=%p", k, n, st);
    uint32_t dev; uint64_t sz, fl;  // with pageable host memory the call completes before it returns
    if (k != 3 && !(npusim_ptr_info(k == 1 ? s : d, &dev, &sz, &fl))) { rtStreamSynchronize(st); memmove(d, s, n); return OK; }
    npusim_stream_run(st, [](void *c) { auto *x = (CpyCtx *)c; memmove(x->d, x->s, x->n); delete x; }, new CpyCtx{d, s, n});
    return OK;
}
ACL(aclError, aclrtMemcpyAsyncWithCondition, (void *d, size_t m, const void *s, size_t n, int k, void *st), (d, m, s, n, k, st))
{
    return aclrtMemcpyAsyncImpl(d, m, s, n, k, st);
}
ACL(aclError, aclrtMemset, (void *d, size_t m, int32_t v, size_t n), (d, m, v, n)) { if (n > m) return E_PARAM; memset(d, v, n); return OK; }
struct SetCtx { void *d; int v; size_t n; };
ACL(aclError, aclrtMemsetAsync, (void *d, size_t m, int32_t v, size_t n, void *st), (d, m, v, n, st))
{
    if (n > m) return E_PARAM;
    npusim_stream_run(st, [](void *c) { auto *x = (SetCtx *)c; memset(x->d, x->v, x->n); delete x; }, new SetCtx{d, v, n});
    return OK;
}
// ---- streams ----
ACL(aclError, aclrtCreateStream, (void **s), (s)) { return rtStreamCreate(s, 0); }
ACL(aclError, aclrtCreateStreamWithConfig, (void **s, uint32_t pr, uint32_t f), (s, pr, f)) { (void)f; return rtStreamCreate(s, (int32_t)pr); }
ACL(aclError, aclrtDestroyStream, (void *s), (s)) { return rtStreamDestroy(s); }
ACL(aclError, aclrtDestroyStreamForce, (void *s), (s)) { return rtStreamDestroy(s); }
ACL(aclError, aclrtSynchronizeStream, (void *s), (s)) { return rtStreamSynchronize(s); }
ACL(aclError, aclrtSynchronizeStreamWithTimeout, (void *s, int32_t t), (s, t)) { (void)t; return rtStreamSynchronize(s); }
ACL(aclError, aclrtStreamQuery, (void *s, int *st), (s, st)) { *st = rtStreamQuery(s); return OK; }
ACL(aclError, aclrtStreamGetId, (void *s, int32_t *id), (s, id)) { return rtGetStreamId(s, id); }
ACL(aclError, aclrtStreamWaitEvent, (void *s, void *e), (s, e)) { return rtStreamWaitEvent(s, e); }
ACL(aclError, aclrtSetStreamFailureMode, (void *s, uint64_t m), (s, m)) { (void)s; (void)m; return OK; }
ACL(aclError, aclrtSetStreamOverflowSwitch, (void *s, uint32_t f), (s, f)) { (void)s; (void)f; return OK; }
ACL(aclError, aclrtGetStreamOverflowSwitch, (void *s, uint32_t *f), (s, f)) { (void)s; *f = 0; return OK; }
ACL(aclError, aclrtSetStreamAttribute, (void *s, int t, void *v), (s, t, v)) { (void)s; (void)t; (void)v; return OK; }
// ---- events ----
ACL(aclError, aclrtCreateEvent, (void **e), (e)) { return rtEventCreate(e); }
ACL(aclError, aclrtCreateEventWithFlag, (void **e, uint32_t f), (e, f)) { (void)f; return rtEventCreate(e); }
ACL(aclError, aclrtCreateEventExWithFlag, (void **e, uint32_t f), (e, f)) { (void)f; return rtEventCreate(e); }
ACL(aclError, aclrtDestroyEvent, (void *e), (e)) { return rtEventDestroy(e); }
ACL(aclError, aclrtRecordEvent, (void *e, void *s), (e, s)) { return rtEventRecord(e, s); }
ACL(aclError, aclrtResetEvent, (void *e, void *s), (e, s)) { return rtEventReset(e, s); }
ACL(aclError, aclrtQueryEventStatus, (void *e, int *st), (e, st)) { *st = npusim_event_complete(e) ? 1 : 0; return OK; }
ACL(aclError, aclrtQueryEventWaitStatus, (void *e, int *st), (e, st)) { (void)e; *st = 0; return OK; }
ACL(aclError, aclrtSynchronizeEvent, (void *e), (e)) { return rtEventSynchronize(e); }
ACL(aclError, aclrtEventElapsedTime, (float *ms, void *a, void *b), (ms, a, b)) { *ms = (float)((double)(npusim_event_ns(b) - npusim_event_ns(a)) / 1e6); return OK; }
ACL(aclError, aclrtEventGetTimestamp, (void *e, uint64_t *t), (e, t)) { *t = (uint64_t)npusim_event_ns(e) / 1000; return OK; }
// ---- callbacks ----
ACL(aclError, aclrtSubscribeReport, (uint64_t t, void *s), (t, s)) { (void)t; (void)s; return OK; }
ACL(aclError, aclrtUnSubscribeReport, (uint64_t t, void *s), (t, s)) { (void)t; (void)s; return OK; }
ACL(aclError, aclrtProcessReport, (int32_t t), (t)) { usleep((useconds_t)(t > 0 ? t : 1) * 1000); return OK; }
typedef void (*HostFn)(void *);
ACL(aclError, aclrtLaunchHostFunc, (void *s, HostFn fn, void *a), (s, fn, a)) { npusim_stream_run(s, fn, a); return OK; }
ACL(aclError, aclrtLaunchCallback, (HostFn fn, void *a, int b, void *s), (fn, a, b, s)) { (void)b; npusim_stream_run(s, fn, a); return OK; }
// ---- kernels ----
ACL(aclError, aclrtLaunchKernel, (void *fh, uint32_t bd, const void *a, size_t n, void *s), (fh, bd, a, n, s)) { (void)a; (void)n; return rtKernelLaunchWithHandleV2(fh, 0, bd, nullptr, nullptr, s, nullptr); }
ACL(aclError, aclrtLaunchKernelWithConfig, (void *fh, uint32_t bd, void *s, void *cfg, void *ah, void *r), (fh, bd, s, cfg, ah, r)) { (void)cfg; (void)ah; (void)r; return rtKernelLaunchWithHandleV2(fh, 0, bd, nullptr, nullptr, s, nullptr); }
ACL(aclError, aclrtLaunchKernelV2, (void *fh, uint32_t bd, const void *a, size_t n, void *cfg, void *s), (fh, bd, a, n, cfg, s)) { (void)a; (void)n; (void)cfg; return rtKernelLaunchWithHandleV2(fh, 0, bd, nullptr, nullptr, s, nullptr); }
ACL(aclError, aclrtLaunchKernelWithHostArgs, (void *fh, uint32_t bd, void *s, void *cfg, void *ha, size_t n, void *ph, size_t pn), (fh, bd, s, cfg, ha, n, ph, pn))
{
    (void)cfg; (void)ha; (void)n; (void)ph; (void)pn;
    return rtKernelLaunchWithHandleV2(fh, 0, bd, nullptr, nullptr, s, nullptr);
}
// ---- options and resources ----
ACL(aclError, aclrtCtxSetSysParamOpt, (int o, int64_t v), (o, v)) { (void)o; (void)v; return OK; }
ACL(aclError, aclrtSetSysParamOpt, (int o, int64_t v), (o, v)) { (void)o; (void)v; return OK; }
ACL(aclError, aclrtGetSysParamOpt, (int o, int64_t *v), (o, v)) { (void)o; *v = 0; return OK; }
ACL(aclError, aclrtGetDeviceResLimit, (int32_t d, int t, uint32_t *v), (d, t, v)) { (void)d; *v = t == 0 ? 24 : 48; return OK; }
ACL(aclError, aclrtGetStreamResLimit, (void *s, int t, uint32_t *v), (s, t, v)) { (void)s; *v = t == 0 ? 24 : 48; return OK; }
ACL(aclError, aclrtGetResInCurrentThread, (int t, uint32_t *v), (t, v)) { *v = t == 0 ? 24 : 48; return OK; }
struct PkgVersion { char version[128], major[64], minor[64], release[64], patch[64], reserved[128]; };
ACL(aclError, aclsysGetVersionStr, (char *pkg, char *out), (pkg, out)) { npusim_trace("aclsysGetVersionStr %s", pkg); strcpy(out, "9.0.0"); return OK; }
ACL(aclError, aclsysGetCANNVersion, (int name, PkgVersion *v), (name, v))
{
    npusim_trace("aclsysGetCANNVersion %d", name);
    memset(v, 0, sizeof *v);
    strcpy(v->version, "9.0.0"); strcpy(v->major, "9"); strcpy(v->minor, "0"); strcpy(v->release, "0");
    return OK;
}
// ---- graph capture: none in progress ----
ACL(aclError, aclmdlRICaptureGetInfo, (void *s, int *st, void **m), (s, st, m)) { (void)s; *st = 0; if (m) *m = nullptr; return OK; }
ACL(aclError, aclmdlRICaptureThreadExchangeMode, (int *m), (m)) { (void)m; return OK; }
