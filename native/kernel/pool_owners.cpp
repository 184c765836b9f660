#include "kernel/pool_owners.h"

#include <algorithm>

namespace memscope::kernel {

void PoolOwners::touch(OwnerNumber owner, Cell& one) {
    if ((one.changed & kOfStep) == 0) step_.changed.push_back(owner);
    if ((one.changed & kOfHighest) == 0) highest_.changed.push_back(owner);
    one.changed = kOfStep | kOfHighest;
}

void PoolOwners::note(Peak& peak, i64 Cell::* at, u8 of, u64 allocs, u32 step) {
    peak.level = level_;
    peak.allocs = allocs;
    peak.changes = changes_;
    peak.step = step;
    for (const OwnerNumber owner : peak.changed) {
        cells_[owner].*at = cells_[owner].now;
        cells_[owner].changed &= static_cast<u8>(~of);
    }
    peak.changed.clear();
}

u64 PoolOwners::change_owner(OwnerNumber from, OwnerNumber to, i64 size) {
    change(from, -size);
    change(to, size);
    return ++changes_;
}

void PoolOwners::correct_owner(OwnerNumber from, OwnerNumber to, i64 size, u64 id, u64 changed) {
    change(from, -size);
    change(to, size);
    const auto correct = [&](const Peak& peak, i64 Cell::* at) {
        if (id > peak.allocs || changed > peak.changes) return;
        cells_[from].*at = minus(cells_[from].*at, size);
        cells_[to].*at = plus(cells_[to].*at, size);
    };
    correct(step_, &Cell::at_step_peak);
    correct(highest_, &Cell::at_highest);
}

void PoolOwners::close(u32 step, u64 allocs) {
    if (step % stride_ == 0 || highest_.step == step) {
        const std::vector<Row> rows = rows_of(step);
        closed_.insert(closed_.end(), rows.begin(), rows.end());
        if (closed_.size() > kMaxOwnerRows) thin();
    }
    // A step's peak is at first the level at its start.
    step_.changed.clear();
    for (Cell& one : cells_) {
        one.at_step_peak = one.now;
        one.changed &= static_cast<u8>(~kOfStep);
    }
    step_.level = level_;
    step_.allocs = allocs;
    step_.changes = changes_;
}

std::vector<PoolOwners::Row> PoolOwners::rows_of(u32 step) const {
    std::vector<Row> rows;
    for (std::size_t owner = 0; owner < cells_.size(); ++owner) {
        const Cell& one = cells_[owner];
        if (one.now != 0 || one.at_step_peak != 0)
            rows.push_back({step, static_cast<OwnerNumber>(owner), one.now, one.at_step_peak});
    }
    if (rows.empty()) rows.push_back({step, OwnerNames::kOther, 0, 0});  // so that nobody takes an earlier step's
    if (rows.size() <= kOwnersPerStep) return rows;
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
        return std::max(a.end_bytes, a.peak_bytes) > std::max(b.end_bytes, b.peak_bytes);
    });
    Row rest{step, OwnerNames::kOther, 0, 0};
    for (std::size_t at = kOwnersPerStep - 1; at < rows.size(); ++at) {
        rest.end_bytes = plus(rest.end_bytes, rows[at].end_bytes);
        rest.peak_bytes = plus(rest.peak_bytes, rows[at].peak_bytes);
    }
    rows.resize(kOwnersPerStep - 1);
    rows.push_back(rest);
    return rows;
}

void PoolOwners::thin() {
    constexpr std::size_t kEnough = kMaxOwnerRows / 4 * 3;
    while (closed_.size() > kEnough && stride_ < (1u << 31)) {
        stride_ *= 2;
        const auto goes = [this](const Row& row) { return row.step % stride_ != 0 && row.step != highest_.step; };
        closed_.erase(std::remove_if(closed_.begin(), closed_.end(), goes), closed_.end());
    }
}

void PoolOwners::shrink() {
    cells_.shrink_to_fit();
    closed_.shrink_to_fit();
}

void PoolOwners::begin_like(const PoolOwners& whole) {
    *this = PoolOwners{};
    level_ = whole.level_;
    changes_ = whole.changes_;
    step_ = whole.step_;
    highest_ = whole.highest_;
    step_.changed.clear();
    highest_.changed.clear();
    stride_ = whole.stride_;
    Cell& all = cell(0);
    all = Cell{level_, step_.level, highest_.level, 0};
    touch(0, all);
}

}  // namespace memscope::kernel
