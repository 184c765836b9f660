// In which order the operators of a process use its pools: the clock by which inefficient blocks are judged.
//
//   api     an operator with all that happens in its thread until it ends is one; a MALLOC, ACCESS or FREE outside of
//           any is one of its own. They are numbered from 1 in the order in which they begin.
//   family  pools that one framework feeds: each counts for itself, so that what happens to host memory makes no block
//           of the card idle. Operators of torch count in the families of torch's pools, those of ATB in that of ATB.
//   threads an operator ends for its own thread alone, and one within another is part of it. Operators that run at once
//           in two threads (backward passes, loaders) have the order of their beginnings.
//   letter  as upstream counts, for whoever must agree with it: one operator is open for all threads, one that begins
//           takes the place of the other, and the end of any ends it, so that the rest of an outer one is told apart
//           event by event.
//
// Memory: threads that are inside an operator, kMaxThreads at most; what further threads do is outside of any.
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>

#include "kernel/pool_key.h"
#include "kernel/running.h"
#include "record/record.h"

namespace memscope::kernel {

enum class Family : u8 { PTA, HOST, CUDA, ATB, MINDSPORE, COUNT };
inline constexpr std::size_t kFamilies = static_cast<std::size_t>(Family::COUNT);

// Whose blocks are judged: those that a framework hands out. COUNT: no family's.
constexpr Family family_of(PoolKey pool) noexcept {
    switch (static_cast<Pool>(pool.pool)) {
        case Pool::PTA:
            return Family::PTA;
        case Pool::HOST:
            return Family::HOST;
        case Pool::CUDA:
            return Family::CUDA;
        case Pool::ATB:
            return Family::ATB;
        case Pool::MINDSPORE:
            return Family::MINDSPORE;
        default:
            return Family::COUNT;
    }
}

class ApiOrder {
public:
    enum class Rule : u8 { BY_THREAD, LETTER };
    explicit ApiOrder(Rule rule = Rule::BY_THREAD) noexcept : rule_(rule) {}

    // OP_START and OP_END; framework: their aux.
    void start(u32 tid, u32 framework);
    void end(u32 tid, u32 framework);

    // When something happens.
    struct Moment {
        u64 api = 0;
        u32 operators = 0;      // that had begun by then
        bool is_given = false;  // in an operator that has been given tensors
    };
    Moment malloc(Family family, u32 tid);
    Moment access(Family family, u32 tid);
    Moment free(Family family, u32 tid);

    // The latest api in which a block was allocated, freed, accessed; 0: none. An operator counts when it has ended.
    u64 last_malloc(Family family) const noexcept { return states_[index(family)].last_malloc; }
    u64 last_free(Family family) const noexcept { return states_[index(family)].last_free; }
    u64 last_access(Family family) const noexcept { return states_[index(family)].last_access; }
    u64 latest(Family family) const noexcept { return states_[index(family)].latest; }
    u32 operators() const noexcept { return operators_; }

    // Events are missing: nothing is known to run.
    void forget() noexcept {
        threads_.clear();
        known_ = nullptr;
        is_full_ = false;
    }

private:
    static constexpr u32 kAtb = 1;
    struct State {
        u64 latest = 0, last_malloc = 0, last_free = 0, last_access = 0;
    };
    // What one thread runs of one framework.
    struct Open {
        u32 depth = 0;
        bool is_given = false;
        u8 mallocs = 0, frees = 0;  // bit per family
        std::array<u64, kFamilies> api{};
    };

    static constexpr std::size_t index(Family family) noexcept { return static_cast<std::size_t>(family); }
    Open* around(Family family, u32 tid);
    Open* find(u32 tid, u32 framework);
    Open* obtain(u32 tid, u32 framework);
    u64 key(u32 tid, u32 framework) const noexcept {
        return u64{rule_ == Rule::LETTER ? 0 : tid} << 1 | (framework == kAtb ? 1 : 0);
    }
    Moment happen(Family family, u32 tid, u8 Open::* what, u64 State::* last);

    const Rule rule_;
    std::array<State, kFamilies> states_{};
    std::unordered_map<u64, Open> threads_;
    u64 known_key_ = 0;  // of the latest that was asked for
    Open* known_ = nullptr;
    bool is_full_ = false;  // kMaxThreads are inside an operator, as far as is known
    u32 operators_ = 0;
};

}  // namespace memscope::kernel
