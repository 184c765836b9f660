#include "kernel/pool_needs.h"

#include <algorithm>

namespace memscope::kernel {

void PoolNeeds::rise(i64 level, u64 api, u64 id, u32 step) noexcept {
    highest_ = level;
    peak_api_ = api;
    peak_id_ = id;
    peak_step_ = step;
    unjudged_at_peak_ = minus(level, judged_);
    for (const u64 key : at_peak_)
        if (const auto row = rows_.find(key); row != rows_.end()) {
            row->second.peak_blocks = 0;
            row->second.peak_bytes = row->second.shared_bytes = 0;
        }
    at_peak_.clear();
}

void PoolNeeds::begin(const JudgedBlock& block, i64 level, u64 latest) {
    judged_ = plus(judged_, block.size);
    if (level > highest_) rise(level, latest, block.id, block.step);
    need(block, block.touched);
    shared_->births.begin(part_, block.id, block.size, block.life.malloc_api, block.site, block.step);
}

void PoolNeeds::touch(JudgedBlock& block, ApiOrder::Moment moment, u8 pattern) {
    if (moment.api <= block.touched) return;  // by the same operator, or by one that began earlier in another thread
    if (pattern != 0 && holds_peak(block, block.touched, moment.api))
        count_at_peak(block, pattern, moment.operators - block.operators);
    block.touched = moment.api;
    block.operators = moment.operators;
    need(block, moment.api);
}

void PoolNeeds::end(const JudgedBlock& block, u8 pattern, u32 operators) {
    if (holds_peak(block, block.touched, kNever)) {
        if (pattern != 0)
            count_at_peak(block, pattern, operators);
        else
            unjudged_at_peak_ = plus(unjudged_at_peak_, block.size);
    }
    release(block);
}

void PoolNeeds::need(const JudgedBlock& block, u64 api) {
    if (api != operator_api_) {
        operator_api_ = api;
        operator_bytes_ = 0;
    }
    operator_bytes_ = plus(operator_bytes_, block.size);
    most_touched_ = std::max(most_touched_, operator_bytes_);
}

void PoolNeeds::release(const JudgedBlock& block) noexcept {
    judged_ = minus(judged_, block.size);
    if (block.touched == operator_api_) operator_bytes_ = minus(operator_bytes_, block.size);
}

void PoolNeeds::change_clock() noexcept {
    rise(highest_, 0, 0, 0);
    operator_api_ = 0;
    operator_bytes_ = 0;
    part_ = ++shared_->parts;
}

u64 PoolNeeds::key_in(const Rows& rows, std::size_t more, u32 site, u8 pattern) noexcept {
    const u64 own = key(site, pattern);
    return rows.size() + more < kMaxNeedRows || rows.find(own) != rows.end() ? own : key(kNoSite, pattern);
}

std::pair<const u64, PoolNeeds::Row>& PoolNeeds::row_of(u32 site, u8 pattern) {
    if (const auto known = rows_.find(key(site, pattern)); known != rows_.end()) return *known;
    const auto [row, is_new] =
        rows_.try_emplace(shared_->rows < kMaxNeedRows ? key(site, pattern) : key(kNoSite, pattern));
    if (is_new) shared_->rows += 1;
    return *row;
}

void PoolNeeds::list_at_peak(const std::pair<const u64, Row>& row) {
    if (row.second.peak_blocks == 0 && row.second.shared_bytes == 0) at_peak_.push_back(row.first);
}

void PoolNeeds::count_at_peak(const JudgedBlock& block, u8 pattern, u32 operators) {
    auto& one = row_of(block.site, pattern);
    list_at_peak(one);
    Row& row = one.second;
    row.peak_blocks += 1;
    row.peak_bytes = plus(row.peak_bytes, block.size);
    row.operators = std::max(row.operators, operators);
    row.first_step = std::min(row.first_step, block.step);
    row.last_step = std::max(row.last_step, block.step);
}

void PoolNeeds::show(const JudgedBlock& block, u8 pattern, u32 operators) {
    Row& row = row_of(block.site, pattern).second;
    row.blocks += 1;
    row.bytes = plus(row.bytes, block.size);
    row.largest = std::max(row.largest, block.size);
    row.operators = std::max(row.operators, operators);
    row.first_step = std::min(row.first_step, block.step);
    row.last_step = std::max(row.last_step, block.step);
}

u64 PoolNeeds::find_reuse(const JudgedBlock& block, u64 api, bool is_dead) {
    const SameSize::Birth* other = shared_->births.end(part_, block.id, block.size, is_dead ? block.touched : api, api);
    if (other == nullptr) return 0;
    JudgedBlock taker;
    taker.id = other->id;
    taker.size = block.size;
    taker.site = other->site;
    taker.step = other->step;
    show(taker, redundant_allocation, 0);
    auto& one = row_of(other->site, redundant_allocation);
    one.second.partner = block.site;
    const bool is_there = other->id <= peak_id_ && (other->ended_api == 0 || peak_api_ < other->ended_api);
    if (is_there && holds_peak(block, block.touched, kNever)) {
        list_at_peak(one);
        one.second.shared_bytes = plus(one.second.shared_bytes, block.size);
    }
    return other->id;
}

void PoolNeeds::foresee(Rows& rows, i64& undecided, const JudgedBlock& block, u32 operators, u8 pattern) const {
    if (!holds_peak(block, block.touched, kNever)) return;
    if (pattern == 0) {
        undecided = plus(undecided, block.size);
        return;
    }
    Row& row = rows[key_in(rows, shared_->rows - rows_.size(), block.site, pattern)];
    row.peak_blocks += 1;
    row.peak_bytes = plus(row.peak_bytes, block.size);
    row.operators = std::max(row.operators, operators - block.operators);
    row.first_step = std::min(row.first_step, block.step);
    row.last_step = std::max(row.last_step, block.step);
}

void PoolNeeds::append(InefficiencyTable& table, PoolKey pool, u32 stream, const Rows& rows, const Sites& sites) const {
    std::vector<u64> keys;
    for (const auto& [key, row] : rows)
        if (row.blocks != 0 || row.peak_bytes != 0) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    for (const u64 key : keys) {
        const Row& row = rows.at(key);
        const u32 site = static_cast<u32>(key >> 8);
        table.device_type.push_back(pool.device_type);
        table.device.push_back(pool.device);
        table.pool.push_back(pool.pool);
        table.stream.push_back(stream);
        table.pattern.push_back(static_cast<u8>(key));
        table.stack_py.push_back(site == kNoSite ? 0 : sites[site].stack_py);
        table.stack_c.push_back(site == kNoSite ? 0 : sites[site].stack_c);
        table.blocks.push_back(row.blocks);
        table.bytes.push_back(row.bytes);
        table.largest.push_back(row.largest);
        table.operators.push_back(row.operators);
        table.peak_blocks.push_back(row.peak_blocks);
        table.peak_bytes.push_back(row.peak_bytes);
        table.shared_bytes.push_back(row.shared_bytes);
        table.partner_py.push_back(row.partner == kNoSite ? 0 : sites[row.partner].stack_py);
        table.first_step.push_back(row.first_step);
        table.last_step.push_back(row.last_step);
    }
}

void PoolNeeds::append(FloorTable& table, PoolKey pool, u32 stream, const Rows& rows, i64 undecided) const {
    i64 unneeded = 0;
    for (const auto& [key, row] : rows) unneeded = plus(unneeded, row.peak_bytes);
    table.device_type.push_back(pool.device_type);
    table.device.push_back(pool.device);
    table.pool.push_back(pool.pool);
    table.stream.push_back(stream);
    table.step.push_back(peak_step_);
    table.peak_bytes.push_back(highest_);
    table.unneeded_bytes.push_back(unneeded);
    undecided = plus(undecided, unjudged_at_peak_);
    table.undecided_bytes.push_back(undecided);
    table.touched_bytes.push_back(most_touched_);
    const i64 needed = minus(minus(highest_, unneeded), undecided);
    table.floor_bytes.push_back(std::min(highest_, std::max(needed, most_touched_)));
}

}  // namespace memscope::kernel
