// What each thread of a process was in the middle of: its innermost operator and its innermost range.
//
// In: the events of one ring, in order: OP_START and OP_END, RANGE_START and RANGE_END, and of the program's own ranges
// CALLs. Out: what runs in a thread now,
// so that a block knows the operator that allocated it. Ranges that are steps are not kept, since a block has its step
// anyway. A range that ends in another thread is found by its id. Where events are missing (GAP, recording off), ends
// may be too: then nothing is known to run until the next begins. Memory: threads that are in the middle of something,
// kMaxThreads at most, with kMaxRunning operators and as many ranges each; what lies deeper is not followed.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "kernel/event_columns.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxThreads = 4096;
inline constexpr std::size_t kMaxRunning = 64;

class Running {
public:
    // Any event; those of other kinds change nothing.
    void hear(const EventColumns& events, std::size_t row);

    // String ids of names; 0: none.
    struct Names {
        u64 operation = 0;
        u64 range = 0;
    };
    Names of(u32 tid) const noexcept;

private:
    struct Range {
        u64 id, name;
        bool is_of_program;  // its id is its start
    };
    struct Thread {
        std::vector<u64> operators;  // the innermost last
        std::vector<Range> ranges;
        bool is_idle() const noexcept { return operators.empty() && ranges.empty(); }
    };

    Thread* obtain(u32 tid);
    void end_operator(u32 tid, u64 name) noexcept;
    void begin_range(u32 tid, const Range& range);
    void end_range(u32 tid, u64 id, bool is_of_program) noexcept;
    static bool remove(Thread& thread, u64 id, bool is_of_program) noexcept;

    std::unordered_map<u32, Thread> threads_;
};

}  // namespace memscope::kernel
