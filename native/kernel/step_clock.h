// Which step of its process is open, and since when.
//
//   step    an event carries the number of step boundaries its rank had seen. The first event with a greater number
//           closes the current step and all in between. An event with a smaller number comes from a thread that was
//           late; it counts to the current step, so that a closed step never changes.
//   range   a step whose source is an mstx range ends with it (RANGE_END with aux 1), not only where the next begins:
//           what lies between two ranges counts to the next. Ranges within the steps of another source end nothing.
//   window  a process without any step (a server, a script) is cut into windows of time, kWindowNs each.
//   times   a device's clock, even converted, may lie before or after the events around it, and what happened while
//           recording was off is told later than its time: neither says when a step began.
//
// Memory: 16 bytes for each of kMaxBegins begins of steps at most.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernel/event_columns.h"
#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

// A greater number of a step is damage and counts as this one. Twice it, and the step after it, are numbers of 32 bits.
inline constexpr u32 kMaxStep = (1u << 31) - 2;
inline constexpr u64 kWindowNs = 1'000'000'000;
// Steps whose begin is known; beyond, every second is forgotten.
inline constexpr std::size_t kMaxBegins = 1u << 16;

class StepClock {
public:
    static u32 step_of(const EventColumns& events, std::size_t row) noexcept {
        return std::min(events.step[row], kMaxStep);
    }

    bool has_started() const noexcept { return has_started_; }
    // The first event is of this step.
    void start(u32 step) noexcept {
        has_started_ = true;
        first_step_ = step_ = step;
    }

    // The time of the next event. True for the first that tells it: whatever began before begins with it.
    bool tell(u64 ts, u8 flags) noexcept {
        if (has(flags, Flag::DEVICE_TIME) || has(flags, Flag::SHADOW)) return false;
        last_ts_ = std::max(last_ts_, ts);
        if (is_told_) return false;
        is_told_ = true;
        first_ts_ = step_start_ts_ = ts;
        return true;
    }

    // The number that the next event carries, which is the open one's at most. True when it opens a step that a range
    // before it had begun by ending.
    bool hear(u32 step) noexcept {
        const bool opens = step == step_ && step > told_step_;
        told_step_ = std::max(told_step_, step);
        return opens;
    }
    // Whether an event of that step changes nothing but the time, which moves on: what nearly all of them do.
    bool is_steady(u32 step, u64 ts, u8 flags) noexcept {
        if (step != told_step_ || step != step_ || !is_told_) return false;
        if (!has(flags, Flag::DEVICE_TIME) && !has(flags, Flag::SHADOW)) last_ts_ = std::max(last_ts_, ts);
        return true;
    }
    bool is_late(u32 step) const noexcept { return step < told_step_; }

    // A STEP.
    void boundary(u32 step, u32 source, u64 stack_py) noexcept {
        boundaries_ += 1;
        range_step_ = step;
        in_range_ = source == static_cast<u32>(StepSource::MSTX);
        if (stack_py != 0) step_stack_ = stack_py;
    }
    // A RANGE_END. True when a step ends with it.
    bool ends_step(u32 step, u32 what) noexcept {
        if (!in_range_ || step != range_step_ || what != kIsStep) return false;
        in_range_ = false;
        return step >= step_;
    }

    // The open step has ended at ts, and `next` has begun.
    void begin(u32 next, u64 ts);

    u32 step() const noexcept { return step_; }
    u64 last_ts() const noexcept { return last_ts_; }
    u64 step_start_ts() const noexcept { return step_start_ts_; }
    u64 boundaries() const noexcept { return boundaries_; }

    // The window that holds a time; the first is 1.
    u32 window_at(u64 ts) const noexcept {
        const u64 ns = ts > first_ts_ ? ts - first_ts_ : 0;
        return static_cast<u32>(std::min<u64>(1 + ns / kWindowNs, kMaxStep));
    }

    // When that window is over.
    u64 end_of_window(u32 window) const noexcept { return first_ts_ + u64{window} * kWindowNs; }

    void describe(RingFacts& facts) const noexcept;
    BeginTable begins() const { return begins_; }

private:
    static constexpr u32 kIsStep = 1;  // aux of RANGE_END: the range was a step

    bool has_started_ = false;
    bool is_told_ = false;  // an event has told the time
    u32 first_step_ = 0, step_ = 0;
    u32 told_step_ = 0;  // the greatest that an event carried; `step_` is greater when a range ended it
    u32 range_step_ = 0;
    bool in_range_ = false;  // the newest step is an mstx range that has not ended
    u64 first_ts_ = 0, last_ts_ = 0, step_start_ts_ = 0, step_stack_ = 0, boundaries_ = 0;
    BeginTable begins_;  // of the steps after the first
};

}  // namespace memscope::kernel
