#include "kernel/running.h"

#include <algorithm>

namespace memscope::kernel {

void Running::hear(const EventColumns& events, std::size_t row) {
    const u32 tid = events.tid[row];
    switch (static_cast<Kind>(events.kind[row])) {
        case Kind::OP_START:
            if (Thread* thread = obtain(tid); thread != nullptr && thread->operators.size() < kMaxRunning)
                thread->operators.push_back(events.name[row]);
            break;
        case Kind::OP_END:
            end_operator(tid, events.name[row]);
            break;
        case Kind::RANGE_START:
            if (events.aux[row] != 0) break;  // a step
            begin_range(tid, {events.attr[row], events.name[row], false});
            break;
        case Kind::RANGE_END:
            if (events.aux[row] == 0) end_range(tid, events.attr[row], false);
            break;
        case Kind::CALL:
            if (const auto kind = static_cast<CallKind>(events.aux[row]); kind == CallKind::RANGE_BEGUN)
                begin_range(tid, {events.ts[row], events.name[row], true});
            else if (kind == CallKind::RANGE)
                end_range(tid, events.attr[row], true);
            break;
        case Kind::GAP:
            threads_.clear();
            break;
        case Kind::SYSTEM:
            if (const u32 what = events.aux[row];
                what == static_cast<u32>(SystemEvent::START_TRACE) || what == static_cast<u32>(SystemEvent::STOP_TRACE))
                threads_.clear();
            break;
        default:
            break;
    }
}

Running::Names Running::of(u32 tid) const noexcept {
    if (threads_.empty()) return {};
    const auto found = threads_.find(tid);
    if (found == threads_.end()) return {};
    const Thread& thread = found->second;
    return {thread.operators.empty() ? 0 : thread.operators.back(),
            thread.ranges.empty() ? 0 : thread.ranges.back().name};
}

Running::Thread* Running::obtain(u32 tid) {
    if (const auto found = threads_.find(tid); found != threads_.end()) return &found->second;
    if (threads_.size() >= kMaxThreads) {
        for (auto at = threads_.begin(); at != threads_.end();) at = at->second.is_idle() ? threads_.erase(at) : ++at;
        if (threads_.size() >= kMaxThreads) return nullptr;
    }
    return &threads_[tid];
}

// What began inside of it and has no end of its own has ended with it.
void Running::end_operator(u32 tid, u64 name) noexcept {
    const auto found = threads_.find(tid);
    if (found == threads_.end()) return;
    auto& open = found->second.operators;
    const auto last = std::find(open.rbegin(), open.rend(), name);
    if (last != open.rend()) open.erase(last.base() - 1, open.end());
}

void Running::begin_range(u32 tid, const Range& range) {
    if (Thread* thread = obtain(tid); thread != nullptr && thread->ranges.size() < kMaxRunning)
        thread->ranges.push_back(range);
}

void Running::end_range(u32 tid, u64 id, bool is_of_program) noexcept {
    if (const auto own = threads_.find(tid); own != threads_.end() && remove(own->second, id, is_of_program)) return;
    for (auto& [other, thread] : threads_)
        if (remove(thread, id, is_of_program)) return;
}

bool Running::remove(Thread& thread, u64 id, bool is_of_program) noexcept {
    auto& open = thread.ranges;
    const auto found = std::find_if(open.rbegin(), open.rend(), [=](const Range& range) {
        return range.id == id && range.is_of_program == is_of_program;
    });
    if (found == open.rend()) return false;
    open.erase(found.base() - 1);
    return true;
}

}  // namespace memscope::kernel
