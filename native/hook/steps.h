// Which boundaries of steps count, and the number of each: the one place where steps are numbered.
//
// Numbers are those that upstream's users see. A source that marks the end of an iteration (msmemscope.step(), an
// engine, an optimizer): its n-th boundary ends step n and begins step n + 1. One that marks its beginning (an mstx
// range `step start`): its n-th boundary begins step n. So iteration n, counted from 1, is step n with either. What
// comes before the first boundary is recorded as step 0, since nobody knows then what the boundaries will be; under a
// source that marks ends this is step 1, and no event carries that number.
//
// Numbers never run backwards, and one stepper leads at a time: its boundaries count, the others' do not. A stepper is
// a source, or one optimizer (its parameters).
//   * A more trusted source takes the lead with its first boundary and goes on from the number reached. When it follows
//     so closely on a counted boundary that both mean the end of one iteration, the number stays.
//   * While the leader steps alone, another stepper takes the lead at once (the second stage of a training, the next
//     fold), on probation: if the former leader is next, it gets the lead back, and the other has lost its credit.
//   * Otherwise the leader keeps the lead (the two optimizers of a GAN, one optimizer per layer) until it has been
//     silent for much longer than usual, told by how often another one has stepped meanwhile.
#pragma once

#include "record/record.h"

namespace memscope {

// Plain data, usable before main, all zero at first. Not for several threads at a time.
class StepCounter {
public:
    // A boundary of `source`. stepper: who of them, told apart by any number; an address that is given to another one
    // later makes that one go on in the first one's place. place: bytes recorded so far. Returns the number of the step
    // that begins, which is that of the step that has just begun when both boundaries end one iteration; 0 when the
    // boundary does not count.
    u32 boundary(StepSource source, u64 stepper, u64 place) noexcept;
    // Before the first boundary of a process that followed the steps of the one that started it: it goes on from there.
    void go_on_from(u32 number) noexcept {
        if (number > number_) number_ = number;
    }
    // Where the step that has just begun begins, once its boundary is recorded itself.
    void begins_at(u64 place) noexcept { place_ = place; }

private:
    struct Stepper {
        u64 key;    // 0: free
        u32 round;  // in which `ticks` were counted
        u32 ticks;  // its boundaries since the leader's latest
        bool refused;
    };
    // More than the optimizers of a model that has one for each parameter. When there are more, all are forgotten.
    static constexpr u32 kSteppers = 2048;
    static constexpr u32 kRounds = 8;  // that say what is usual

    Stepper& obtain(u64 key) noexcept;
    void lead(u64 key, StepSource source) noexcept;
    void begin_round() noexcept;
    void remember(u32 ticks) noexcept { usual_[rounds_++ % kRounds] = ticks; }
    u32 usual() const noexcept;
    bool leads_alone() const noexcept { return leader_ticks_ >= 2 && usual() == 0; }
    bool is_overdue(const Stepper& other, StepSource source) const noexcept;
    bool ends_the_same_step(u64 place) const noexcept;
    u32 count(StepSource source, u64 place) noexcept;

    u32 number_ = 0;
    u64 leader_ = 0;                        // a key
    u64 former_ = 0;                        // who led before; only while the leader is on probation
    StepSource source_ = StepSource::API;   // of the leader
    StepSource counted_ = StepSource::API;  // of the latest boundary that counted
    u32 leader_ticks_ = 0;                  // its boundaries since it leads
    u32 round_ = 0;                         // one for each boundary of a leader
    u32 most_ = 0;                          // boundaries of the most frequent other in this round
    u32 usual_[kRounds] = {};               // the latest such, in a circle
    u32 rounds_ = 0;                        // ever put there
    u64 place_ = 0, length_ = 0;            // of the latest boundary that counted; of the step that it ended
    u32 known_ = 0;
    Stepper steppers_[kSteppers] = {};
};

}  // namespace memscope
