// libhccl.so (simulated collectives): ranks are processes on this machine, data goes through a shared memory file.
#include "cann.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>
typedef int HcclResult;
enum { OK = 0, E_PARA = 1, E_NOT_SUPPORT = 5, E_TIMEOUT = 9 };
struct HcclRootInfo { char name[4108]; };
constexpr uint64_t CHUNK = 1u << 20;
constexpr uint32_t MAXR = 16;
struct Shared { std::atomic<uint32_t> joined, count, sense; std::atomic<uint32_t> box[MAXR][MAXR]; char data[MAXR][CHUNK]; char mail[MAXR][MAXR][1 << 16]; };
struct Comm { uint32_t n, rank; char name[64]; Shared *s; uint32_t sense = 0; };

static bool spin(const std::function<bool()> &f)
{
    time_t end = time(nullptr) + 120;
    for (int i = 0; !f(); i++) { if (i > 200) usleep(50); if (time(nullptr) > end) { fprintf(stderr, "[npusim] hccl: peers did not arrive\n"); return false; } }
    return true;
}
static void barrier(Comm *c)
{
    uint32_t s = c->sense ^= 1;
    if (c->s->count.fetch_add(1) + 1 == c->n) { c->s->count = 0; c->s->sense = s; return; }
    spin([&] { return c->s->sense.load() == s; });
}
static size_t bytes(int dt) { static const int b[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2}; return dt >= 0 && dt < 12 ? (size_t)b[dt] : 1; }
static float bf(uint16_t v) { uint32_t u = (uint32_t)v << 16; float f; memcpy(&f, &u, 4); return f; }
static uint16_t bf(float f) { uint32_t u; memcpy(&u, &f, 4); return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }
template <class T> static T op2(T a, T b, int op) { return op == 0 ? (T)(a + b) : op == 1 ? (T)(a * b) : op == 2 ? (a > b ? a : b) : (a < b ? a : b); }
template <class T> static void red(void *d, const void *s, uint64_t n, int op) { T *x = (T *)d; const T *y = (const T *)s; for (uint64_t i = 0; i < n; i++) x[i] = op2<T>(x[i], y[i], op); }
static void reduce(void *d, const void *s, uint64_t n, int dt, int op)
{
    switch (dt) {
        case 0: return red<int8_t>(d, s, n, op); case 1: return red<int16_t>(d, s, n, op); case 2: return red<int32_t>(d, s, n, op);
        case 3: return red<_Float16>(d, s, n, op); case 4: return red<float>(d, s, n, op); case 5: return red<int64_t>(d, s, n, op);
        case 7: return red<uint8_t>(d, s, n, op); case 10: return red<double>(d, s, n, op);
        case 11: { auto *x = (uint16_t *)d; auto *y = (const uint16_t *)s; for (uint64_t i = 0; i < n; i++) x[i] = bf(op2<float>(bf(x[i]), bf(y[i]), op)); return; }
    }
}
// runs `f` on the stream as one task named `name`
static HcclResult go(const char *name, void *stream, std::function<void()> f)
{
    auto *h = new std::function<void()>(std::move(f));
    SimKernel k{SIM_KERNEL_MAGIC, name, [](void *c) { auto *x = (std::function<void()> *)c; (*x)(); delete x; }, h};
    return rtKernelLaunchWithHandleV2(&k, 0, 1, nullptr, nullptr, stream, nullptr);
}
static Comm *join(uint32_t n, const char *name, uint32_t rank)
{
    if (n > MAXR) return nullptr;
    auto *c = new Comm{n, rank, {}, nullptr};
    snprintf(c->name, sizeof c->name, "%.63s", name);
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared))) return nullptr;
    c->s = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    c->s->joined++;
    if (!spin([&] { return c->s->joined.load() >= n; })) return nullptr;
    if (rank == 0) shm_unlink(name);
    npusim_trace("hccl join %s rank %u of %u", name, rank, n);
    return c;
}
SIM_API HcclResult HcclGetRootInfo(HcclRootInfo *r) { static std::atomic<int> k; memset(r, 0, sizeof *r); snprintf(r->name, sizeof r->name, "/npusim-%d-%d", (int)getpid(), k++); return OK; }
SIM_API HcclResult HcclCommInitRootInfo(uint32_t n, const HcclRootInfo *r, uint32_t rank, void **c) { *c = join(n, r->name, rank); return *c ? OK : E_TIMEOUT; }
SIM_API HcclResult HcclCommInitRootInfoConfig(uint32_t n, const HcclRootInfo *r, uint32_t rank, void *, void **c) { return HcclCommInitRootInfo(n, r, rank, c); }
SIM_API HcclResult HcclCommDestroy(void *c) { delete (Comm *)c; return OK; }
SIM_API HcclResult HcclGetCommName(void *c, char *n) { strcpy(n, ((Comm *)c)->name); return OK; }
SIM_API HcclResult HcclGetCommAsyncError(void *, HcclResult *r) { *r = OK; return OK; }
SIM_API uint32_t HcclGetCommConfigCapability() { return 3; }
SIM_API HcclResult HcclSetConfig(int, int) { return OK; }
SIM_API HcclResult HcclAllReduce(void *s, void *d, uint64_t n, int dt, int op, void *cc, void *st)
{
    auto *c = (Comm *)cc;
    return go("HcclAllReduce", st, [=] {
        uint64_t per = CHUNK / bytes(dt);
        for (uint64_t o = 0; o < n; o += per) {
            uint64_t m = n - o < per ? n - o : per, b = m * bytes(dt), ob = o * bytes(dt);
            memcpy(c->s->data[c->rank], (char *)s + ob, b);
            barrier(c);
            std::vector<char> t(c->s->data[0], c->s->data[0] + b);
            for (uint32_t r = 1; r < c->n; r++) reduce(t.data(), c->s->data[r], m, dt, op);
            barrier(c);
            memcpy((char *)d + ob, t.data(), b);
        }
    });
}
SIM_API HcclResult HcclReduce(void *s, void *d, uint64_t n, int dt, int op, uint32_t, void *c, void *st) { return HcclAllReduce(s, d, n, dt, op, c, st); }
SIM_API HcclResult HcclBroadcast(void *p, uint64_t n, int dt, uint32_t root, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclBroadcast", st, [=] {
        for (uint64_t o = 0; o < tot; o += CHUNK) {
            uint64_t b = tot - o < CHUNK ? tot - o : CHUNK;
            if (c->rank == root) memcpy(c->s->data[0], (char *)p + o, b);
            barrier(c);
            if (c->rank != root) memcpy((char *)p + o, c->s->data[0], b);
            barrier(c);
        }
    });
}
SIM_API HcclResult HcclAllGather(void *s, void *d, uint64_t n, int dt, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclAllGather", st, [=] {
        for (uint64_t o = 0; o < tot; o += CHUNK) {
            uint64_t b = tot - o < CHUNK ? tot - o : CHUNK;
            memcpy(c->s->data[c->rank], (char *)s + o, b);
            barrier(c);
            for (uint32_t r = 0; r < c->n; r++) memcpy((char *)d + r * tot + o, c->s->data[r], b);
            barrier(c);
        }
    });
}
SIM_API HcclResult HcclReduceScatter(void *s, void *d, uint64_t n, int dt, int op, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclReduceScatter", st, [=] {
        for (uint32_t part = 0; part < c->n; part++)
            for (uint64_t o = 0; o < tot; o += CHUNK) {
                uint64_t b = tot - o < CHUNK ? tot - o : CHUNK;
                memcpy(c->s->data[c->rank], (char *)s + part * tot + o, b);
                barrier(c);
                if (part == c->rank) {
                    memcpy((char *)d + o, c->s->data[0], b);
                    for (uint32_t r = 1; r < c->n; r++) reduce((char *)d + o, c->s->data[r], b / bytes(dt), dt, op);
                }
                barrier(c);
            }
    });
}
SIM_API HcclResult HcclAlltoAll(const void *s, uint64_t n, int dt, const void *d, uint64_t, int, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclAlltoAll", st, [=] {
        for (uint32_t src = 0; src < c->n; src++)
            for (uint32_t dst = 0; dst < c->n; dst++)
                for (uint64_t o = 0; o < tot; o += CHUNK) {
                    uint64_t b = tot - o < CHUNK ? tot - o : CHUNK;
                    if (c->rank == src) memcpy(c->s->data[0], (const char *)s + dst * tot + o, b);
                    barrier(c);
                    if (c->rank == dst) memcpy((char *)d + src * tot + o, c->s->data[0], b);
                    barrier(c);
                }
    });
}
SIM_API HcclResult HcclBarrier(void *cc, void *st) { auto *c = (Comm *)cc; return go("HcclBarrier", st, [=] { barrier(c); }); }
SIM_API HcclResult HcclSend(void *p, uint64_t n, int dt, uint32_t to, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclSend", st, [=] {
        auto &f = c->s->box[c->rank][to];
        for (uint64_t o = 0; o < tot; o += sizeof c->s->mail[0][0]) {
            uint64_t b = tot - o < sizeof c->s->mail[0][0] ? tot - o : sizeof c->s->mail[0][0];
            spin([&] { return f.load() == 0; }); memcpy(c->s->mail[c->rank][to], (char *)p + o, b); f = 1;
        }
    });
}
SIM_API HcclResult HcclRecv(void *p, uint64_t n, int dt, uint32_t from, void *cc, void *st)
{
    auto *c = (Comm *)cc; uint64_t tot = n * bytes(dt);
    return go("HcclRecv", st, [=] {
        auto &f = c->s->box[from][c->rank];
        for (uint64_t o = 0; o < tot; o += sizeof c->s->mail[0][0]) {
            uint64_t b = tot - o < sizeof c->s->mail[0][0] ? tot - o : sizeof c->s->mail[0][0];
            spin([&] { return f.load() == 1; }); memcpy((char *)p + o, c->s->mail[from][c->rank], b); f = 0;
        }
    });
}
