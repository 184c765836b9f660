// Which group of processes a call of c10d's operators is of, and its number in that group.
//
// In: a call as it begins, whose group is kept until it has returned and its backend has counted it. Out: the group's
// name, which is the same on all of its ranks, and the backend's own sequence number: equal on all ranks for one and
// the same collective, also where recording began at different moments. Sending and receiving are no collectives. A
// torch without c10d's headers has no collectives either.
#pragma once

#include <ATen/record_function.h>
#include <atomic>
#include <string>

#include "plan.h"

#if __has_include(<torch/csrc/distributed/c10d/GroupRegistry.hpp>)
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#define MEMSCOPE_HAS_COLLECTIVES 1
#endif

namespace memscope::observer {

struct Collective {
    std::string group;
    unsigned long long sequence = 0;  // 0: the backend does not count
    unsigned ranks = 0;
};

#ifdef MEMSCOPE_HAS_COLLECTIVES

// The backend's count; one that has none says so by an exception, which is slow, and is not asked again.
inline unsigned long long sequence_of(c10d::ProcessGroup& group, c10::DeviceType device) {
    static std::atomic<const void*> numberless{nullptr};
    const auto backend = group.getBackend(device);
    if (numberless.load(std::memory_order_relaxed) == backend.get()) return 0;
    try {
        return backend->getSequenceNumberForGroup();
    } catch (...) {
        numberless.store(backend.get(), std::memory_order_relaxed);
        return 0;
    }
}

// Of the outermost collective that this thread runs: a functional one calls the backend's own.
inline c10::intrusive_ptr<c10d::ProcessGroup>& group_of_this_thread() {
    static thread_local c10::intrusive_ptr<c10d::ProcessGroup> group;
    return group;
}

inline void begin_collective(const Plan& plan, c10::ArrayRef<const c10::IValue> given) {
    const auto at = static_cast<std::size_t>(plan.group);
    auto& group = group_of_this_thread();
    if (group || at >= given.size()) return;
    if (given[at].isString())
        group = c10d::resolve_process_group(given[at].toStringRef());
    else if (given[at].isCustomClass())
        group = given[at].toCustomClass<c10d::ProcessGroup>();
}

// device: where the collective's tensors lie. False: its argument led to no group, or it is part of another.
inline bool end_collective(c10::DeviceType device, Collective& found) {
    const auto group = std::move(group_of_this_thread());
    if (!group) return false;
    try {
        found.group = group->getGroupName();
        found.sequence = sequence_of(*group, device);
        found.ranks = static_cast<unsigned>(group->getSize());
        return true;
    } catch (...) {  // a group that was destroyed meanwhile
        return false;
    }
}

#else

inline void begin_collective(const Plan&, c10::ArrayRef<const c10::IValue>) {}
inline bool end_collective(c10::DeviceType, Collective&) { return false; }

#endif

}  // namespace memscope::observer
