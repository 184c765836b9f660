// libascendcl.so: parts without an Impl twin (logging, tensor descriptors, data buffers).
#include "cann.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include <map>
#include <mutex>
typedef int aclError;
// NPUSIM_CALLS=FILE: names and counts of the acl functions used, written at exit (for finding what a workload needs)
SIM_API void npusim_count(const char *n)
{
    static const char *file = getenv("NPUSIM_CALLS");
    if (!file) return;
    static std::mutex mu; static std::map<std::string, long> *m = [] { atexit([] { npusim_count(nullptr); }); return new std::map<std::string, long>; }();
    std::lock_guard<std::mutex> g(mu);
    if (n) { ++(*m)[n]; return; }
    if (FILE *f = fopen(file, "w")) { for (auto &x : *m) fprintf(f, "%s %ld\n", x.first.c_str(), x.second); fclose(f); }
}
SIM_API void aclAppLog(int level, const char *func, const char *, uint32_t line, const char *fmt, ...)
{
    static int min = getenv("NPUSIM_APPLOG") ? atoi(getenv("NPUSIM_APPLOG")) : 3;
    if (level < min) return;
    va_list ap; va_start(ap, fmt);
    fprintf(stderr, "[acl %d] %s:%u ", level, func, line); vfprintf(stderr, fmt, ap); fputc('\n', stderr);
    va_end(ap);
}
struct aclDataBuffer { void *p; size_t n; };
SIM_API aclDataBuffer *aclCreateDataBuffer(void *p, size_t n) { return new aclDataBuffer{p, n}; }
SIM_API aclError aclDestroyDataBuffer(const aclDataBuffer *b) { delete b; return 0; }
SIM_API void *aclGetDataBufferAddr(const aclDataBuffer *b) { return b->p; }
struct aclTensorDesc { int dt; int fmt; std::vector<int64_t> dims; std::string name; int place = 0; };
SIM_API aclTensorDesc *aclCreateTensorDesc(int dt, int n, const int64_t *d, int fmt) { return new aclTensorDesc{dt, fmt, std::vector<int64_t>(d, d + n), {}, 0}; }
SIM_API void aclDestroyTensorDesc(const aclTensorDesc *d) { delete d; }
SIM_API int aclGetTensorDescType(const aclTensorDesc *d) { return d->dt; }
SIM_API int aclGetTensorDescFormat(const aclTensorDesc *d) { return d->fmt; }
SIM_API size_t aclGetTensorDescNumDims(const aclTensorDesc *d) { return d->dims.size(); }
SIM_API aclError aclGetTensorDescDimV2(const aclTensorDesc *d, size_t i, int64_t *v) { if (i >= d->dims.size()) return 100000; *v = d->dims[i]; return 0; }
SIM_API void aclSetTensorDescName(aclTensorDesc *d, const char *n) { d->name = n; }
SIM_API aclError aclSetTensorFormat(aclTensorDesc *d, int f) { (void)d; (void)f; return 0; }
SIM_API aclError aclSetTensorShape(aclTensorDesc *d, int n, const int64_t *v) { (void)d; (void)n; (void)v; return 0; }
SIM_API aclError aclSetTensorPlaceMent(aclTensorDesc *d, int p) { d->place = p; return 0; }
