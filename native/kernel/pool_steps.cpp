#include "kernel/pool_steps.h"

#include <algorithm>
#include <utility>

namespace memscope::kernel {

namespace {

constexpr u32 kFirstStep = 2;  // analysis/steps.py: gaps count from here on

}  // namespace

PoolSteps::PoolSteps(u32 step, u64 ts) noexcept {
    open_.step = step;
    open_.start_ts = ts;
}

void PoolSteps::forget_levels() noexcept {
    open_.min_bytes = open_.end_bytes;
    open_.most_bytes = 0;
    open_.has_level = false;
}

void PoolSteps::close(u32 next, u32 silent, u64 ts) {
    open_.end_ts = ts;
    open_ = latest();
    closed_.push_back(open_);
    note_gap(open_);
    for (u32 step = next - silent; step < next; ++step) closed_.push_back(open_.next(step, ts));
    open_ = open_.next(next, ts);
    if (closed_.size() > kMaxStepRows) thin();
}

void PoolSteps::note_gap(const Row& row) {
    if (row.step < kFirstStep || row.most_bytes <= 0) return;
    const auto ratio = [](const Row& one) {
        return static_cast<double>(one.min_bytes) / static_cast<double>(one.most_bytes);
    };
    if (!smallest_gap_ || ratio(row) < ratio(*smallest_gap_)) smallest_gap_ = row;
    if (!largest_gap_ || ratio(row) > ratio(*largest_gap_)) largest_gap_ = row;
}

void PoolSteps::thin() {
    const auto stays = [this](const Row& row) {
        return (smallest_gap_ && row.step == smallest_gap_->step) || (largest_gap_ && row.step == largest_gap_->step);
    };
    constexpr std::size_t kEnough = kMaxStepRows / 4 * 3;
    while (closed_.size() > kEnough) {
        std::vector<Row> rows;
        for (const Row& row : closed_) {
            const bool joins = !rows.empty() && rows.back().step / stride_ == row.step / stride_;
            if (joins && !stays(rows.back()) && !stays(row))
                rows.back().join(row);
            else
                rows.push_back(row);
        }
        closed_ = std::move(rows);
        if (closed_.size() <= kEnough || stride_ > open_.step) break;
        stride_ *= 2;
    }
}

PoolSteps::Row PoolSteps::latest() const noexcept {
    Row row = open_;
    row.end_unseen = count_.unseen();
    row.end_missing = count_.missing();
    return row;
}

PoolSteps::Row PoolSteps::Row::next(u32 number, u64 ts) const noexcept {
    Row row;
    row.step = number;
    row.start_bytes = row.end_bytes = row.peak_bytes = row.min_bytes = end_bytes;
    row.start_reserved = row.end_reserved = row.peak_reserved = end_reserved;
    row.end_unseen = end_unseen;
    row.end_missing = end_missing;
    row.start_ts = row.end_ts = ts;
    return row;
}

void PoolSteps::Row::join(const Row& later) noexcept {
    const Row before = *this;
    *this = later;
    steps += before.steps;
    start_bytes = before.start_bytes;
    start_reserved = before.start_reserved;
    start_ts = before.start_ts;
    peak_bytes = std::max(peak_bytes, before.peak_bytes);
    peak_reserved = std::max(peak_reserved, before.peak_reserved);
    min_bytes = std::min(min_bytes, before.min_bytes);
    most_bytes = std::max(most_bytes, before.most_bytes);
    allocs += before.allocs;
    frees += before.frees;
    alloc_bytes += before.alloc_bytes;
    freed_bytes += before.freed_bytes;
}

void PoolSteps::append(StepTable& table, PoolKey pool, u64 last_ts) const {
    for (const Row& row : closed_) append(table, pool, row, row.end_ts, true);
    append(table, pool, latest(), last_ts, false);
}

void PoolSteps::append(StepTable& table, PoolKey pool, const Row& row, u64 end_ts, bool complete) {
    table.device_type.push_back(pool.device_type);
    table.device.push_back(pool.device);
    table.pool.push_back(pool.pool);
    table.step.push_back(row.step);
    table.start_bytes.push_back(row.start_bytes);
    table.end_bytes.push_back(row.end_bytes);
    table.peak_bytes.push_back(row.peak_bytes);
    table.min_bytes.push_back(row.min_bytes);
    table.most_bytes.push_back(row.most_bytes);
    table.start_reserved.push_back(row.start_reserved);
    table.end_reserved.push_back(row.end_reserved);
    table.peak_reserved.push_back(row.peak_reserved);
    table.end_unseen.push_back(row.end_unseen);
    table.end_missing.push_back(row.end_missing);
    table.allocs.push_back(row.allocs);
    table.frees.push_back(row.frees);
    table.alloc_bytes.push_back(row.alloc_bytes);
    table.freed_bytes.push_back(row.freed_bytes);
    table.start_ts.push_back(row.start_ts);
    table.end_ts.push_back(end_ts);
    table.complete.push_back(complete ? Bool::YES : Bool::NO);
    table.steps.push_back(row.steps);
}

}  // namespace memscope::kernel
