#include "calls.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>
#include "ascend_hal/report.h"
#include "knobs.h"
#include "npusim.h"

// Which calls of one function fail: those numbered first..last (from 1, counted since the fault was set).
struct Fault {
    uint64_t first = 1, last = UINT64_MAX;
    int code = 0;  // 0: the function's usual one
};

struct SimCall {
    std::string name;
    std::vector<const Fault*> old_faults;  // kept: another thread may be reading one
    std::atomic<uint64_t> count{0};
    std::atomic<uint64_t> base{0};  // count when the fault was set
    std::atomic<const Fault*> fault{nullptr};
    SimCall* next = nullptr;
};

namespace {

struct Registry {
    std::mutex lock;
    SimCall* first = nullptr;
    std::string faults;
};

// Never destroyed: calls go on while the process exits.
Registry& registry() {
    static Registry* const one = [] {
        auto* fresh = new Registry;
        fresh->faults = npusim_knob_text(Knob::FAIL);
        report_at_exit();
        return fresh;
    }();
    return *one;
}

// What the text says of `name`: "name[:nth[:code]]", nth with a + for "and all later".
const Fault* fault_of(const std::string& faults, const std::string& name) {
    size_t at = 0;
    while (at < faults.size()) {
        size_t end = faults.find(',', at);
        if (end == std::string::npos) end = faults.size();
        const std::string one = faults.substr(at, end - at);
        at = end + 1;
        const size_t colon = one.find(':');
        if (one.substr(0, colon) != name) continue;
        auto* fault = new Fault;
        if (colon == std::string::npos) return fault;
        char* rest = nullptr;
        fault->first = strtoull(one.c_str() + colon + 1, &rest, 10);
        if (fault->first == 0) {
            fault->first = 1;  // "name::code": always
        } else if (*rest == '+') {
            ++rest;
        } else {
            fault->last = fault->first;
        }
        if (*rest == ':') fault->code = static_cast<int>(strtol(rest + 1, nullptr, 0));
        return fault;
    }
    return nullptr;
}

void arm(SimCall& call, const std::string& faults) {
    call.base.store(call.count.load());
    if (call.fault != nullptr) call.old_faults.push_back(call.fault);
    call.fault.store(fault_of(faults, call.name), std::memory_order_release);
}

}  // namespace

SimCall* npusim_call(const char* function) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> hold(all.lock);
    for (SimCall* call = all.first; call != nullptr; call = call->next)
        if (call->name == function) return call;
    auto* call = new SimCall;
    call->name = function;
    call->next = all.first;
    arm(*call, all.faults);
    all.first = call;
    return call;
}

int npusim_enter(SimCall* call, int failure) {
    const uint64_t count = call->count.fetch_add(1, std::memory_order_relaxed) + 1;
    const Fault* const fault = call->fault.load(std::memory_order_acquire);
    if (__builtin_expect(fault == nullptr, 1)) return 0;
    const uint64_t nth = count - call->base.load(std::memory_order_relaxed);
    if (nth < fault->first || nth > fault->last) return 0;
    const int code = fault->code != 0 ? fault->code : failure;
    npusim_trace("%s: call %llu fails with %d", call->name.c_str(), static_cast<unsigned long long>(nth), code);
    return code;
}

void npusim_set_faults(const char* text) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> hold(all.lock);
    all.faults = text;
    for (SimCall* call = all.first; call != nullptr; call = call->next) arm(*call, all.faults);
}

uint64_t npusim_call_count(const char* function) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> hold(all.lock);
    for (const SimCall* call = all.first; call != nullptr; call = call->next)
        if (call->name == function) return call->count.load();
    return 0;
}

void for_each_call(void (*take)(void* context, const char* name, uint64_t count), void* context) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> hold(all.lock);
    for (const SimCall* call = all.first; call != nullptr; call = call->next)
        take(context, call->name.c_str(), call->count.load());
}
