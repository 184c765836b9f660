// The labels that each thread has set and not taken back: LABEL_PUSH and LABEL_POP.
//
//   levels 1 to 4   up to three different labels each, with a count of nested pushes; the latest pushed holds
//   level 5         the program's own: up to three, the outermost is level 5
//
// A push beyond that is ignored, and so is its pop, as is the pop of what was pushed before recording began. Threads
// without labels cost nothing; at most kMaxLabelledThreads have some at a time.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "kernel/owner_names.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxLabelledThreads = 1u << 12;

class ThreadLabels {
public:
    // False: there are too many labels at that level, or too many threads.
    bool push(u32 tid, u32 level, u64 label, OwnerNames& names);
    void pop(u32 tid, u32 level, u64 label, OwnerNames& names);

    LabelsNumber of(u32 tid) const noexcept {
        if (threads_.empty()) return 0;
        const auto known = threads_.find(tid);
        return known == threads_.end() ? 0 : known->second.now;
    }

private:
    static constexpr std::size_t kMostAtALevel = 3;
    struct Pushed {
        u64 label;
        u32 count;
    };
    struct Thread {
        std::array<std::vector<Pushed>, kUserLevel> levels;  // by level less 1; the last is the program's own
        LabelsNumber now = 0;

        Labels labels() const noexcept;
        bool is_empty() const noexcept;
    };

    std::unordered_map<u32, Thread> threads_;
};

}  // namespace memscope::kernel
