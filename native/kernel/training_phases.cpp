#include "kernel/training_phases.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace memscope::kernel {

namespace {

void add_bytes(u64& sum, i64 size) noexcept {
    const u64 more = size > 0 ? static_cast<u64>(size) : 0;
    sum = sum + more < sum ? ~u64{0} : sum + more;
}

u64 count_of(const SizeCounts& counts, const PlacedSize& size) noexcept {
    const auto found = counts.find(size);
    return found == counts.end() ? 0 : found->second;
}

// Whether a release with such a stack proves that not the engine lets go. Where torch has no stack of it, it notes the
// one of the allocation.
bool is_by_others(StackRole role) noexcept {
    switch (role) {
        case StackRole::EMPTY:
        case StackRole::BACKWARD:
        case StackRole::MAIN:
        case StackRole::FORWARD:
            return false;
        default:
            return true;
    }
}

// Of the first walk: blocks that teach no size.
bool is_surveyed(StackRole role) noexcept {
    switch (role) {
        case StackRole::NONE:
        case StackRole::MAIN:
        case StackRole::FORWARD:
        case StackRole::IN_BACKWARD:
        case StackRole::CALLS_GRAD:
        case StackRole::BEHIND:
        case StackRole::OPTIMIZER_WITHIN:
            return false;
        default:
            return true;
    }
}

}  // namespace

TrainingPhases::TrainingPhases(std::vector<bool> is_named, const TrainingSizes* known)
    : is_named_(std::move(is_named)),
      is_first_(known == nullptr),
      known_(known == nullptr ? TrainingSizes{} : *known) {}

TrainingPhases::Phase TrainingPhases::phase_of(StackRole role) noexcept {
    switch (role) {
        case StackRole::FORWARD:
            return Phase::FORWARD;
        case StackRole::BACKWARD:
        case StackRole::IN_BACKWARD:
        case StackRole::CALLS_GRAD:
            return Phase::BACKWARD;
        case StackRole::BEHIND:
        case StackRole::OPTIMIZER:
        case StackRole::STATE:
            return Phase::BEHIND;
        default:
            return Phase::NONE;
    }
}

ToldOwners TrainingPhases::go(const PhaseEvents& events) {
    for (std::size_t at = 0; at < events.rows; ++at) {
        const auto kind = static_cast<Kind>(events.kind[at]);
        const i64 row = events.row[at], place = events.place[at], size = events.size[at], step = events.step[at];
        const u64 ptr = events.ptr[at];
        if (kind == Kind::FREE) {
            free(row, place, ptr, step, static_cast<StackRole>(events.role[at]));
            continue;
        }
        const bool is_old = events.is_old[at] != 0;
        auto role = static_cast<StackRole>(events.role[at]);
        if (role == StackRole::EMPTY && (phase_ == Phase::FORWARD || phase_ == Phase::BACKWARD))
            role = StackRole::BACKWARD;
        if (const Phase phase = phase_of(role); phase != Phase::NONE && !is_old) {
            if (phase != phase_)
                begin(phase, row);
            else if (phase == Phase::BACKWARD)
                go_on();
            if (role == StackRole::CALLS_GRAD) calls_grad_ = true;
        }
        if (kind != Kind::MALLOC) continue;
        if (role == StackRole::OPTIMIZER_WITHIN || role == StackRole::STATE_WITHIN)
            stepped_ = {static_cast<i64>(piece_), row};
        if (is_first_ && !is_surveyed(role)) {
            if (const u32 there = index_of(place).find(ptr); there != kNone) end_block(place, ptr, there);
            continue;
        }
        Block& block = begin_block(place, ptr);
        block.size = size;
        block.step = step;
        block.row = row;
        block.role = role;
        block.is_old = is_old;
        block.is_known = events.labels[at] != 0;
        block.is_named = is_named_[events.labels[at]];
        add_bytes(all_bytes_, size);
        if (block.is_named)
            add_bytes(named_bytes_, size);
        else if (role == StackRole::WEIGHT ||
                 (is_old && role == StackRole::EMPTY && known_.weights.count(block.sized()) != 0))
            tell(block, DeducedOwner::WEIGHT, row);
        else if (role == StackRole::STATE || role == StackRole::STATE_WITHIN)
            tell(block, DeducedOwner::STATE, row);
        else if ((role == StackRole::BACKWARD || role == StackRole::OPTIMIZER) && !is_old)
            list_made(static_cast<u32>(&block - blocks_.data()));
    }
    // What stands in the next events cannot be told of blocks that have ended in these.
    freed_.clear();
    ++piece_;
    return std::exchange(told_, ToldOwners{});
}

TrainingSizes TrainingPhases::sizes() const {
    SizeCounts old;
    for (const Block& block : blocks_)
        if (block.is_live && block.is_old && block.role == StackRole::EMPTY && !block.is_known) ++old[block.sized()];
    TrainingSizes found;
    for (const auto& [size, count] : left_) {
        const u64 there = count_of(old, size);
        if (returned_.count(size) == 0 && std::max(there, count_of(shaped_, size)) < count) continue;
        found.gradients.emplace(size, count);
        found.states.insert(size);
        if (there == count) found.weights.insert(size);
    }
    for (const auto& [size, count] : shaped_) found.states.insert(size);
    return found;
}

// --- blocks ----------------------------------------------------------------------------------------------------

PlaceIndex& TrainingPhases::index_of(i64 place) {
    if (index_ == nullptr || index_place_ != place) {
        index_ = &live_[place];  // stays where it is
        index_place_ = place;
    }
    return *index_;
}

TrainingPhases::Block& TrainingPhases::begin_block(i64 place, u64 ptr) {
    if (unused_.empty()) {
        blocks_.emplace_back();
        unused_.reserve(blocks_.capacity());  // end_block() must not allocate
        unused_.push_back(static_cast<u32>(blocks_.size() - 1));
    }
    PlaceIndex::Entry& entry = index_of(place).claim(ptr);
    if (entry.place == kNone) {
        index_->fill(entry, ptr, unused_.back());
        unused_.pop_back();
    } else {
        unlist_made(blocks_[entry.place]);
    }
    Block& block = blocks_[entry.place] = Block{};
    block.ptr = ptr;
    block.place = place;
    block.run = run_;
    block.piece = piece_;
    block.is_live = true;
    return block;
}

void TrainingPhases::end_block(i64 place, u64 ptr, u32 at) noexcept {
    unlist_made(blocks_[at]);
    blocks_[at].is_live = false;
    index_of(place).erase(ptr);
    unused_.push_back(at);
}

void TrainingPhases::list_made(u32 at) noexcept {
    Block& block = blocks_[at];
    block.is_made = true;
    block.before = last_made_;
    (last_made_ == kNone ? first_made_ : blocks_[last_made_].behind) = at;
    last_made_ = at;
}

void TrainingPhases::unlist_made(Block& block) noexcept {
    if (!block.is_made) return;
    (block.before == kNone ? first_made_ : blocks_[block.before].behind) = block.behind;
    (block.behind == kNone ? last_made_ : blocks_[block.behind].before) = block.before;
    block.before = block.behind = kNone;
    block.is_made = false;
}

template <typename Visit>
void TrainingPhases::each_made(Visit&& visit) {
    for (u32 at = first_made_; at != kNone; at = blocks_[at].behind) visit(blocks_[at]);
}

// --- phases ----------------------------------------------------------------------------------------------------

void TrainingPhases::free(i64 row, i64 place, u64 ptr, i64 step, StackRole role) {
    const u32 at = index_of(place).find(ptr);
    if (at == kNone) return;
    end_block(place, ptr, at);
    Block& block = blocks_[at];
    if (block.is_old) return;
    if (block.is_left) returned_.insert(block.sized());
    if (block.is_named) return;
    if (phase_ == Phase::BACKWARD)
        freed_.push_back({block, row, step, is_by_others(role)});
    else if (block.run == run_)
        tell_temporary(block, row, step);
}

// The engine allocates again.
void TrainingPhases::go_on() {
    for (Freed& one : freed_) {
        if (one.block.run == run_)
            tell_temporary(one.block, one.row, one.step);
        else if (!one.by_others && (one.block.role == StackRole::FORWARD || one.block.role == StackRole::MAIN))
            tell(one.block, DeducedOwner::ACTIVATION, one.row);
    }
    freed_.clear();
}

// The phase before it is over.
void TrainingPhases::begin(Phase phase, i64 row) {
    if (phase_ == Phase::BACKWARD && !calls_grad_) {
        end_backward(row);
    } else if (phase_ == Phase::BEHIND) {
        each_made([&](Block& block) {
            if (block.role == StackRole::OPTIMIZER && known_.states.count(block.sized()) != 0)
                tell(block, DeducedOwner::STATE, row);
        });
    }
    while (first_made_ != kNone) unlist_made(blocks_[first_made_]);
    freed_.clear();
    calls_grad_ = false;
    stepped_ = {};
    phase_ = phase;
    ++run_;
}

void TrainingPhases::end_backward(i64 row) {
    SizeCounts left;
    each_made([&](const Block& block) {
        if (block.role == StackRole::BACKWARD) ++left[block.sized()];
    });
    for (const auto& [size, count] : left) {
        u64& most = left_[size];
        most = std::max(most, count);
    }
    bool is_any_told = false;
    each_made([&](Block& block) {
        if (block.role != StackRole::BACKWARD) return;
        block.is_left = true;
        if (known_.gradients.count(block.sized()) != 0) tell(block, DeducedOwner::GRADIENT, row);
        is_any_told = is_any_told || block.is_named;
    });
    if (is_any_told) return;
    const auto is_dropped = [&](const Freed& one) {
        return one.block.run == run_ && one.block.role == StackRole::BACKWARD;
    };
    SizeCounts dropped;
    for (const Freed& one : freed_)
        if (is_dropped(one)) ++dropped[one.block.sized()];
    for (Freed& one : freed_) {
        if (!is_dropped(one)) continue;
        const PlacedSize size = one.block.sized();
        if (count_of(dropped, size) == count_of(known_.gradients, size))
            tell(one.block, DeducedOwner::GRADIENT, one.row);
    }
}

void TrainingPhases::tell_temporary(Block& block, i64 row, i64 step) {
    // What the engine made before a step within its pass may be the gradient that it took.
    const bool is_taken = block.role == StackRole::BACKWARD && std::tuple(static_cast<i64>(block.piece), block.row) <
                                                                   std::tuple(stepped_.piece, stepped_.row);
    if (block.step == step && !block.is_known && !is_taken && phase_ != Phase::NONE && !calls_grad_)
        tell(block, DeducedOwner::TEMPORARY, row);
}

// At its beginning, where that is among these events, so that it counts from there on; else before this row.
void TrainingPhases::tell(Block& block, DeducedOwner owner, i64 row) {
    const bool is_here = block.piece == piece_;
    block.is_named = true;
    add_bytes(bytes_[static_cast<std::size_t>(owner)], block.size);
    if (owner == DeducedOwner::WEIGHT || owner == DeducedOwner::STATE) ++shaped_[block.sized()];
    told_.at.push_back(is_here ? block.row + 1 : row);
    told_.like.push_back(is_here ? block.row : row);
    told_.ptr.push_back(block.ptr);
    told_.owner.push_back(static_cast<u8>(owner));
}

}  // namespace memscope::kernel
