#include "kernel/step_clock.h"

namespace memscope::kernel {

void StepClock::begin(u32 next, u64 ts) {
    step_ = next;
    step_start_ts_ = ts;
    begins_.step.push_back(next);
    begins_.ts.push_back(ts);
    if (begins_.step.size() <= kMaxBegins) return;
    // Whoever asks for the step at a time then gets, for the steps between, the one before.
    std::size_t kept = 0;
    for (std::size_t at = 0; at < begins_.step.size(); at += 2, ++kept) {
        begins_.step[kept] = begins_.step[at];
        begins_.ts[kept] = begins_.ts[at];
    }
    begins_.step.resize(kept);
    begins_.ts.resize(kept);
}

void StepClock::describe(RingFacts& facts) const noexcept {
    facts.first_step = first_step_;
    facts.step = step_;
    facts.first_ts = first_ts_;
    facts.last_ts = last_ts_;
    facts.step_stack = step_stack_;
    facts.boundaries = boundaries_;
}

}  // namespace memscope::kernel
