// Whose the bytes of one pool are: now, at the peak of each step, and at the highest peak of all.
//
//   peak     at a new one only the owners whose bytes have changed since the last are written down, so that a pool that
//            climbs with each event pays for each event once
//   early    a label may name the owner that a block has had from its beginning (a gradient is allocated before anybody
//            says what it is): its bytes move in the open step's peak too, and in the highest one, if it was there then
//   rows     one per step and owner that had bytes, of the largest kOwnersPerStep owners; the rest is "other"
//   thin     beyond kMaxOwnerRows rows only every second of the steps stays, then every fourth, and the highest peak's
#pragma once

#include <array>
#include <vector>

#include "kernel/owner_names.h"
#include "kernel/pool_key.h"
#include "kernel/tables.h"
#include "kernel/wrapping.h"

namespace memscope::kernel {

inline constexpr std::size_t kOwnersPerStep = 32;
inline constexpr std::size_t kMaxOwnerRows = 1u << 15;  // 24 bytes each

class PoolOwners {
public:
    void born(OwnerNumber owner, i64 size) { change(owner, size); }
    void died(OwnerNumber owner, i64 size) { change(owner, -size); }
    // Behind every event that changed the level, as PoolSteps. allocs: number of the latest block.
    void note_level(u64 allocs, u32 step) {
        if (level_ > step_.level) note(step_, &Cell::at_step_peak, kOfStep, allocs, step);
        if (level_ > highest_.level) note(highest_, &Cell::at_highest, kOfHighest, allocs, step);
    }
    // A live block belongs to somebody else from now on. Returns the number of this change.
    u64 change_owner(OwnerNumber from, OwnerNumber to, i64 size);
    // It has done so from its beginning on. id: the block's number; changed: that of its latest change, 0 without one:
    // a peak before that knows the block by another owner, and keeps it.
    void correct_owner(OwnerNumber from, OwnerNumber to, i64 size, u64 id, u64 changed);
    // The open step ends, and the next begins. allocs: number of the latest block.
    void close(u32 step, u64 allocs);
    void shrink();
    // Goes on from what another one has seen of the same pool, as if all of it had been number 0's; without its rows.
    void begin_like(const PoolOwners& whole);

    struct Row {
        u32 step;
        OwnerNumber owner;
        i64 end_bytes, peak_bytes;
    };
    // Of the latest change of an owner.
    u64 changes() const noexcept { return changes_; }
    // The bytes of every owner now: add(owner, bytes).
    template <typename Add>
    void each_now(Add add) const {
        for (std::size_t owner = 0; owner < cells_.size(); ++owner)
            if (cells_[owner].now != 0) add(static_cast<OwnerNumber>(owner), cells_[owner].now);
    }
    // Every row of a step, and the bytes of every owner at the highest peak: add(step, owner, bytes).
    template <typename Add>
    void each_row(u32 open_step, Add add) const {
        for (const Row& row : closed_) add(row);
        for (const Row& row : rows_of(open_step)) add(row);
    }
    template <typename Add>
    void each_at_peak(Add add) const {
        for (std::size_t owner = 0; owner < cells_.size(); ++owner)
            if (cells_[owner].at_highest != 0)
                add(highest_.step, static_cast<OwnerNumber>(owner), cells_[owner].at_highest);
    }

private:
    enum : u8 { kOfStep = 1, kOfHighest = 2 };
    struct Cell {
        i64 now = 0, at_step_peak = 0, at_highest = 0;
        u8 changed = 0;  // since that peak
    };
    struct Peak {
        i64 level = 0;
        u64 allocs = 0;   // number of the latest block then
        u64 changes = 0;  // and of the latest change of an owner
        u32 step = 0;
        std::vector<OwnerNumber> changed;
    };
    Cell& cell(OwnerNumber owner) {
        if (owner >= cells_.size()) cells_.resize(owner + std::size_t{1});
        return cells_[owner];
    }
    void change(OwnerNumber owner, i64 by) {
        Cell& one = cell(owner);
        one.now = plus(one.now, by);
        level_ = plus(level_, by);
        if (one.changed != (kOfStep | kOfHighest)) touch(owner, one);
    }
    void touch(OwnerNumber owner, Cell& cell);
    void note(Peak& peak, i64 Cell::* at, u8 of, u64 allocs, u32 step);
    std::vector<Row> rows_of(u32 step) const;
    void thin();

    std::vector<Cell> cells_;  // by owner
    i64 level_ = 0;
    u64 changes_ = 0;
    Peak step_, highest_;
    std::vector<Row> closed_;
    u32 stride_ = 1;
};

}  // namespace memscope::kernel
