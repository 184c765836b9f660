#include "source/mstx_domains.h"

#include <atomic>
#include <cstring>

#include "hook/fork.h"
#include "hook/recorder.h"
#include "hook/spin_lock.h"

namespace memscope::mstx {
namespace {

constexpr u32 kPools = 5;
constexpr u32 kMostDomains = 64;  // the pools, the user's, and the one that all others share

Domain g_domains[kMostDomains] = {
    {1, Pool::PTA, "ptaCaching"},
    {2, Pool::PTA, "msleaks"},
    {3, Pool::PTA_WORKSPACE, "ptaWorkspace"},
    {4, Pool::MINDSPORE, "mindsporeMemPool"},
    {5, Pool::ATB, "atb"},
};
std::atomic<u32> g_count{kPools};
std::atomic<bool> g_adding{false};  // spin lock; held while a name is copied

Domain* found_among(u64 id, u32 from, u32 to) noexcept {
    for (u32 i = from; i < to; ++i)
        if (g_domains[i].id == id) return &g_domains[i];
    return nullptr;
}

Domain* added(u64 id, const char* name, u32 seen) noexcept {
    const SpinLock lock(g_adding);
    const u32 count = g_count.load(std::memory_order_relaxed);
    Domain* domain = found_among(id, seen, count);
    if (domain == nullptr) {
        domain = &g_domains[count < kMostDomains ? count : kMostDomains - 1];
        if (count < kMostDomains) {
            const bool last = count == kMostDomains - 1;
            domain->id = id;
            strncpy(domain->name, last ? "(other domains)" : name, sizeof domain->name - 1);
            g_count.store(count + 1, std::memory_order_release);
        }
    }
    return domain;
}

}  // namespace

Domain* domain_named(const char* name) noexcept {
    if (name == nullptr) name = "";
    for (u32 i = 0; i < kPools; ++i)  // under an allocator's lock: a comparison of the first bytes, nothing more
        if (strcmp(name, g_domains[i].name) == 0) return &g_domains[i];
    const u64 id = text_id(name, strnlen(name, kMaxTextBytes));
    const u32 count = g_count.load(std::memory_order_acquire);
    if (Domain* domain = found_among(id, kPools, count)) return domain;
    Domain* domain = added(id, name, count);
    if (domain == &g_domains[kMostDomains - 1])
        report_lost("mstx", "more domains than can be told apart: the last ones are recorded under one name");
    return domain;
}

const Domain* domain_of(const void* handle) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(g_domains);
    if (at >= sizeof g_domains || at % sizeof(Domain) != 0) return nullptr;
    return at / sizeof(Domain) < g_count.load(std::memory_order_acquire) ? static_cast<const Domain*>(handle) : nullptr;
}

namespace {

void begin_anew_in_child() noexcept { g_adding.store(false, std::memory_order_relaxed); }
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

}  // namespace memscope::mstx
