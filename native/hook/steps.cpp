#include "hook/steps.h"

#include <cstring>

namespace memscope {
namespace {

// Boundaries of another stepper that a leader may stay silent for, beyond four times what is usual. Who says a step
// with words is given more time.
constexpr u32 kPatience = 4;
constexpr u32 kPatienceWithMoreTrusted = 32;
// While the leader has stepped only once nothing is usual yet.
constexpr u32 kPatienceWithBeginner = 8;

constexpr bool begins_a_step(StepSource source) noexcept { return source == StepSource::MSTX; }

}  // namespace

u32 StepCounter::boundary(StepSource source, u64 stepper, u64 place) noexcept {
    const u64 key = nonzero(combine64(combine64(static_cast<u64>(Kind::STEP), static_cast<u64>(source)), stepper));
    if (key == leader_) {
        if (former_ != 0) rounds_ = 0;  // what was usual with the one before
        former_ = 0;
        remember(most_);
        ++leader_ticks_;
        begin_round();
        return count(source, place);
    }
    Stepper& other = obtain(key);
    if (leader_ == 0) {
        lead(key, source);
        return count(source, place);
    }
    if (other.round != round_) {
        other.round = round_;
        other.ticks = 0;
    }
    ++other.ticks;
    if (other.ticks > most_) most_ = other.ticks;

    const bool is_more_trusted = source < source_;
    const u64 former = former_;
    if (former == key) {
        obtain(leader_).refused = true;
        lead(key, source);
        leader_ticks_ = 2;
    } else if (is_more_trusted) {
        const u32 meanwhile = leader_ticks_;
        lead(key, source);
        rounds_ = 0;
        remember(meanwhile);
    } else if (leads_alone() && most_ == 1 && !other.refused) {
        const u64 leader = leader_;
        lead(key, source);
        former_ = leader;
    } else if (is_overdue(other, source)) {
        lead(key, source);
        rounds_ = 0;
    } else {
        return 0;
    }
    return is_more_trusted && ends_the_same_step(place) ? number_ : count(source, place);
}

StepCounter::Stepper& StepCounter::obtain(u64 key) noexcept {
    if (known_ >= kSteppers / 4 * 3) {
        memset(steppers_, 0, sizeof steppers_);
        known_ = 0;
    }
    u32 at = static_cast<u32>(mix64(key)) % kSteppers;
    while (steppers_[at].key != key && steppers_[at].key != 0) at = (at + 1) % kSteppers;
    if (steppers_[at].key == 0) {
        steppers_[at].key = key;
        ++known_;
    }
    return steppers_[at];
}

void StepCounter::lead(u64 key, StepSource source) noexcept {
    leader_ = key;
    former_ = 0;
    source_ = source;
    leader_ticks_ = 1;
    begin_round();
}

void StepCounter::begin_round() noexcept {
    ++round_;
    most_ = 0;
}

u32 StepCounter::usual() const noexcept {
    u32 most = 0;
    for (u32 at = 0; at < kRounds && at < rounds_; ++at)
        if (usual_[at] > most) most = usual_[at];
    return most;
}

bool StepCounter::is_overdue(const Stepper& other, StepSource source) const noexcept {
    if (source > source_) return other.ticks > 4 * usual() + kPatienceWithMoreTrusted;
    if (leads_alone()) return other.ticks > 1;
    return other.ticks > (leader_ticks_ < 2 ? kPatienceWithBeginner : 4 * usual() + kPatience);
}

// Both came at the end of one iteration: hardly anything was recorded between them.
bool StepCounter::ends_the_same_step(u64 place) const noexcept {
    return !begins_a_step(counted_) && (place - place_) * 2 < length_;
}

u32 StepCounter::count(StepSource source, u64 place) noexcept {
    if (number_ == 0 && !begins_a_step(source)) number_ = 1;
    counted_ = source;
    length_ = place - place_;
    place_ = place;
    return ++number_;
}

}  // namespace memscope
