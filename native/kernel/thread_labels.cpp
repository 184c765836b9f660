#include "kernel/thread_labels.h"

#include <algorithm>

namespace memscope::kernel {

Labels ThreadLabels::Thread::labels() const noexcept {
    Labels labels{};
    for (u32 level = 1; level < kUserLevel; ++level)
        if (!levels[level - 1].empty()) labels[level - 1] = levels[level - 1].back().label;
    std::size_t at = kUserLevel - 1;
    for (const Pushed& own : levels[kUserLevel - 1]) labels[at++] = own.label;
    return labels;
}

bool ThreadLabels::Thread::is_empty() const noexcept {
    return std::all_of(levels.begin(), levels.end(), [](const auto& level) { return level.empty(); });
}

bool ThreadLabels::push(u32 tid, u32 level, u64 label, OwnerNames& names) {
    if (level == 0 || level > kUserLevel || label == 0) return false;
    if (threads_.size() >= kMaxLabelledThreads && threads_.find(tid) == threads_.end()) return false;
    Thread& thread = threads_[tid];
    std::vector<Pushed>& pushed = thread.levels[level - 1];
    const auto known = level == kUserLevel ? pushed.end()  // the same name twice is two levels
                                           : std::find_if(pushed.begin(), pushed.end(),
                                                          [label](const Pushed& one) { return one.label == label; });
    if (known != pushed.end()) {
        const Pushed again{label, known->count + 1};
        pushed.erase(known);
        pushed.push_back(again);
    } else if (pushed.size() < kMostAtALevel) {
        pushed.push_back({label, 1});
    } else {
        return false;
    }
    thread.now = names.number_of(thread.labels());
    return true;
}

void ThreadLabels::pop(u32 tid, u32 level, u64 label, OwnerNames& names) {
    const auto thread = threads_.find(tid);
    if (thread == threads_.end() || level == 0 || level > kUserLevel) return;
    std::vector<Pushed>& pushed = thread->second.levels[level - 1];
    const auto latest =
        std::find_if(pushed.rbegin(), pushed.rend(), [label](const Pushed& one) { return one.label == label; });
    if (latest == pushed.rend()) return;
    if (--latest->count == 0) pushed.erase(std::next(latest).base());
    if (thread->second.is_empty())
        threads_.erase(thread);
    else
        thread->second.now = names.number_of(thread->second.labels());
}

}  // namespace memscope::kernel
