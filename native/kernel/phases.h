// What a program is doing by its own word, and what each of its pools needed meanwhile.
//
//   phase    of a framework's function: the label that it sets at level PROCESS (LABEL_PUSH), with the component that
//            its thread has then; of the program and of mstx: a range by its name, steps left out
//   run      of a phase, from its beginning to its end on one thread. What begins within a run of the same phase on the
//            same thread is part of it. Runs of other phases nest or lie beside each other: each has its own peak. A
//            label ends by its name alone: a run waits for all labels of its name that its thread has set since, those
//            that are left out, too
//   stretch  the time between two beginnings or ends of any runs. Only its peak is followed; when it ends, the runs
//            that were under way take it over if it is their highest: an allocation costs the same, however many
//   peak     of a phase in a pool the highest of all its runs, at first the level at which a run begins; and whose the
//            bytes were. A label that names an owner from a block's beginning moves its bytes here, too (pool_owners.h)
//   kept     what the pool held more at the end of runs than at their beginning, whoever it was that allocated
//   unseen   where events are missing (GAP, recording off), ends may be, too: runs end there without having kept
//            anything
//
// Memory: 64 bytes for each of kMaxPhases phases and kMaxRuns runs, and 8 for each range within one, of which it
// follows kMaxRuns; of each pool 64 for each again, 24 for each owner, and 16 for each owner that had bytes at the peak
// of a phase. Nothing where there is no phase.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel/event_columns.h"
#include "kernel/owner_names.h"
#include "kernel/pool_key.h"
#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

class PoolOwners;

inline constexpr u32 kProcessLevel = 2;  // PROCESS, of record.h
inline constexpr std::size_t kMaxPhases = 64;
inline constexpr std::size_t kMaxRuns = 256;

struct Phase {
    u64 component, name;  // string ids; a range has no component
    bool is_range;
    u64 runs;  // that have begun
};

class Phases {
public:
    struct Run {
        u64 number;  // of its ring, from 1
        u32 tid, phase;
        u64 labels;              // of its name that have begun, its own first, and have not ended
        std::vector<u64> begun;  // ids of the ranges within it, its own first
    };
    enum class Heard : u8 { NOTHING, CHANGE, LEFT_OUT };

    // component: of the thread's labels by now.
    Heard begin_label(u32 tid, u64 component, u64 name) { return begin(tid, {component, name, false, 0}, 0); }
    Heard end_label(u32 tid, u64 name);
    // RANGE_START, RANGE_END and CALL; those of other kinds change nothing.
    Heard hear_range(const EventColumns& events, std::size_t row);
    // Ends may have been missed.
    Heard forget();

    // Runs that are under way, in the order in which they began.
    const std::vector<Run>& runs() const noexcept { return runs_; }
    const std::vector<Phase>& known() const noexcept { return known_; }

private:
    using At = std::vector<Run>::iterator;

    Heard begin(u32 tid, const Phase& phase, u64 id);
    Heard end_range(u32 tid, u64 id, bool is_of_program);
    Heard end(At run);
    At latest_of_label(u32 tid, u64 name);

    std::vector<Phase> known_;
    std::vector<Run> runs_;
    u64 begun_ = 0;
};

// Of one pool.
class PoolPhases {
public:
    // Whose its bytes are by now.
    explicit PoolPhases(const PoolOwners& owners);

    void born(OwnerNumber owner, i64 size) { change(owner, size); }
    void died(OwnerNumber owner, i64 size) { change(owner, -size); }
    // As of PoolOwners.
    void note_level(u64 allocs, u32 step) {
        if (level_ > stretch_.level) note(allocs, step);
    }
    void change_owner(OwnerNumber from, OwnerNumber to, i64 size) {
        change(from, -size);
        change(to, size);
        ++changes_;
    }
    void correct_owner(OwnerNumber from, OwnerNumber to, i64 size, u64 id, u64 changed);

    // A stretch ends. runs: those that are under way from now on; is_seen: those that are not have ended now.
    void follow(const std::vector<Phases::Run>& runs, bool is_seen, u64 allocs, u32 step);

    // As if the stretch ended now.
    void append(PhaseTable& table, PhaseOwnerTable& owners, PoolKey pool, const std::vector<Phase>& known,
                const OwnerNames& names) const;

private:
    struct Cell {
        i64 now = 0, at_peak = 0;  // of the stretch
        bool has_changed = false;  // since that peak
    };
    struct Moment {
        i64 level = 0;
        u64 allocs = 0;   // number of the latest block then
        u64 changes = 0;  // and of the latest change of an owner
        u32 step = 0;
        // Whether a block of that number, whose latest change is that one, was alive then as it is known now.
        bool knows(u64 id, u64 changed) const noexcept { return id <= allocs && changed <= changes; }
    };
    struct Owned {
        OwnerNumber owner;
        i64 bytes;
    };
    struct Peak {
        bool is_seen = false;
        Moment at;
        i64 start = 0;  // the level at the start of its run
        i64 kept = 0;   // by all runs of the phase that have ended
        u64 ended = 0;
        std::vector<Owned> owners;  // in ascending order
        void move(OwnerNumber from, OwnerNumber to, i64 size);
    };
    struct Run {
        u64 number;
        u32 phase;
        i64 start;
    };

    void change(OwnerNumber owner, i64 by);
    void note(u64 allocs, u32 step);
    void take_over();

    std::vector<Cell> cells_;  // by owner
    std::vector<OwnerNumber> changed_;
    i64 level_ = 0;
    u64 changes_ = 0;
    Moment stretch_;
    std::vector<Run> runs_;    // as Phases has them
    std::vector<Peak> peaks_;  // by phase
    u64 newest_ = 0;           // most allocs of a peak: what was born later is in none
};

}  // namespace memscope::kernel
