#include "kernel/api_order.h"

#include <algorithm>

namespace memscope::kernel {

void ApiOrder::start(u32 tid, u32 framework) {
    Open* open = obtain(tid, framework);
    if (open == nullptr) return;
    if (rule_ == Rule::BY_THREAD && open->depth != 0) {
        open->depth += 1;
        return;
    }
    open->depth = 1;
    open->is_given = false;
    operators_ += 1;
    if (framework == kAtb) {
        open->api[index(Family::ATB)] = ++states_[index(Family::ATB)].latest;
        return;
    }
    for (const Family family : {Family::PTA, Family::HOST, Family::CUDA})
        open->api[index(family)] = ++states_[index(family)].latest;
}

void ApiOrder::end(u32 tid, u32 framework) {
    Open* open = find(tid, framework);
    if (open == nullptr || --open->depth != 0) return;
    is_full_ = false;
    for (std::size_t family = 0; (open->mallocs | open->frees) >> family != 0; ++family) {
        State& state = states_[family];
        if ((open->mallocs >> family & 1) != 0) state.last_malloc = std::max(state.last_malloc, open->api[family]);
        if ((open->frees >> family & 1) != 0) state.last_free = std::max(state.last_free, open->api[family]);
    }
    open->mallocs = open->frees = 0;
}

ApiOrder::Moment ApiOrder::malloc(Family family, u32 tid) {
    return happen(family, tid, &Open::mallocs, &State::last_malloc);
}

ApiOrder::Moment ApiOrder::free(Family family, u32 tid) { return happen(family, tid, &Open::frees, &State::last_free); }

ApiOrder::Moment ApiOrder::access(Family family, u32 tid) {
    const Moment moment = happen(family, tid, nullptr, nullptr);
    if (Open* open = around(family, tid)) open->is_given = true;
    u64& last = states_[index(family)].last_access;
    last = std::max(last, moment.api);
    return moment;
}

ApiOrder::Moment ApiOrder::happen(Family family, u32 tid, u8 Open::* what, u64 State::* last) {
    if (Open* open = around(family, tid)) {
        if (what != nullptr) open->*what = static_cast<u8>(open->*what | 1u << index(family));
        return {open->api[index(family)], operators_, open->is_given};
    }
    State& state = states_[index(family)];
    state.latest += 1;
    if (last != nullptr) state.*last = state.latest;
    return {state.latest, operators_, false};
}

// The operator in which it happens; null: it is outside of any. Nobody tells those of MindSpore.
ApiOrder::Open* ApiOrder::around(Family family, u32 tid) {
    return family == Family::MINDSPORE ? nullptr : find(tid, family == Family::ATB ? kAtb : 0);
}

ApiOrder::Open* ApiOrder::find(u32 tid, u32 framework) {
    const u64 wanted = key(tid, framework);
    if (known_ == nullptr || known_key_ != wanted) {
        const auto found = threads_.find(wanted);
        if (found == threads_.end()) return nullptr;
        known_key_ = wanted;
        known_ = &found->second;
    }
    return known_->depth != 0 ? known_ : nullptr;
}

ApiOrder::Open* ApiOrder::obtain(u32 tid, u32 framework) {
    const u64 wanted = key(tid, framework);
    if (known_ != nullptr && known_key_ == wanted) return known_;
    if (threads_.size() >= kMaxThreads && threads_.find(wanted) == threads_.end()) {
        if (is_full_) return nullptr;  // looked through, and none has ended since
        known_ = nullptr;
        for (auto at = threads_.begin(); at != threads_.end();) at = at->second.depth == 0 ? threads_.erase(at) : ++at;
        is_full_ = threads_.size() >= kMaxThreads;
        if (is_full_) return nullptr;
    }
    known_ = &threads_[wanted];
    known_key_ = wanted;
    return known_;
}

}  // namespace memscope::kernel
