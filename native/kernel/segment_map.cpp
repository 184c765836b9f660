#include "kernel/segment_map.h"

#include <algorithm>
#include <iterator>

#include "kernel/wrapping.h"

namespace memscope::kernel {

u8 Cover::largest() const noexcept {
    const auto most = std::max_element(bytes.begin(), bytes.end());
    return *most > 0 ? static_cast<u8>(most - bytes.begin()) : static_cast<u8>(Pool::NONE);
}

void SegmentMap::add(Segment segment) {
    if (segment.size <= 0) return;
    const u64 end = segment.ptr + static_cast<u64>(segment.size);
    for (auto old = first_at(segment.ptr); old != segments_.end() && old->first < end;) {
        const auto next = std::next(old);
        take_out(old);
        old = next;
    }
    segment.copied = peak_;
    segment.at_peak = false;
    Segment& added = segments_[segment.ptr] = segment;
    // Memory is mapped after it was given out, when the peak has been noted.
    if (peak_lasts_) begin_peak();
    if (!added.shadow) return;
    // Blocks of one pool do not overlap: of those that begin before it, only the last can reach into it.
    for (u8 pool = 0; pool < Cover::kPools; ++pool) {
        auto block = from_before_.upper_bound({pool, added.ptr});
        if (block != from_before_.begin() && std::prev(block)->first.first == pool) --block;
        for (; block != from_before_.end() && block->first.first == pool && block->first.second < end; ++block)
            if (overlap(added, block->second) > 0) change(added, block->second, 1);
    }
}

void SegmentMap::remove(u64 ptr, u64 id) {
    const auto found = segments_.find(ptr);
    if (found != segments_.end() && (id == 0 || found->second.id == id)) take_out(found);
}

Place SegmentMap::begin(const Span& block) {
    for (auto at = first_at(block.ptr); at != segments_.end() && overlap(at->second, block) > 0; ++at)
        change(at->second, block, 1);
    if (block.shadow) from_before_[{block.pool, block.ptr}] = block;
    pool_bytes_ = plus(pool_bytes_, block.size);
    look_for_peak();
    return find(block);
}

void SegmentMap::end(const Span& block) {
    for (auto at = first_at(block.ptr); at != segments_.end() && overlap(at->second, block) > 0; ++at)
        if (knows(at->second, block)) change(at->second, block, -1);
    if (block.shadow) from_before_.erase({block.pool, block.ptr});
    pool_bytes_ = minus(pool_bytes_, block.size);
    peak_lasts_ = false;
}

Place SegmentMap::find(const Span& block) const {
    Place place;
    auto at = segments_.upper_bound(block.ptr);
    if (at == segments_.begin()) return place;
    const Segment& first = std::prev(at)->second;
    if (block.ptr - first.ptr >= static_cast<u64>(first.size) || !knows(first, block)) return place;
    place = Place{1, first.ptr, first.size, first.id};
    for (; at != segments_.end() && overlap(at->second, block) > 0; ++at) place.segments += knows(at->second, block);
    return place;
}

void SegmentMap::driver_changed(i64 bytes) {
    driver_bytes_ = plus(driver_bytes_, bytes);
    look_for_peak();
}

void SegmentMap::append(SegmentTable& table, u8 device_type, i16 device) const {
    std::vector<std::pair<Segment, bool>> rows;
    for (const Segment& segment : ended_) rows.emplace_back(segment, false);
    for (const auto& [ptr, segment] : segments_) {
        rows.emplace_back(segment, true);
        copy_peak(rows.back().first);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first.ptr < b.first.ptr; });
    for (const auto& [segment, alive] : rows) {
        const u8 peak_pool = segment.peak.largest(), end_pool = segment.now.largest();
        table.device_type.push_back(device_type);
        table.device.push_back(device);
        table.ptr.push_back(segment.ptr);
        table.size.push_back(segment.size);
        table.segment_id.push_back(segment.id);
        table.attr.push_back(segment.attr);
        table.driver.push_back(segment.driver);
        table.ts.push_back(segment.ts);
        table.step.push_back(segment.step);
        table.at_peak.push_back(segment.at_peak ? Bool::YES : Bool::NO);
        table.peak_pool.push_back(peak_pool);
        table.peak_used.push_back(segment.peak.bytes[peak_pool]);
        table.peak_blocks.push_back(segment.peak.blocks[peak_pool]);
        table.at_end.push_back(alive ? Bool::YES : Bool::NO);
        table.end_pool.push_back(end_pool);
        table.end_used.push_back(segment.now.bytes[end_pool]);
        table.end_blocks.push_back(segment.now.blocks[end_pool]);
    }
}

SegmentMap::Segments::iterator SegmentMap::first_at(u64 ptr) {
    const auto after = segments_.upper_bound(ptr);
    if (after == segments_.begin()) return after;
    const auto before = std::prev(after);
    return ptr - before->first < static_cast<u64>(before->second.size) ? before : after;
}

void SegmentMap::copy_peak(Segment& segment) const {
    if (segment.copied == peak_) return;
    segment.peak = segment.now;
    segment.at_peak = true;
    segment.copied = peak_;
}

void SegmentMap::take_out(Segments::iterator at) {
    copy_peak(at->second);
    peak_lasts_ = false;
    if (at->second.at_peak) ended_.push_back(at->second);
    segments_.erase(at);
}

// Whether the block was counted in the segment: it began there, or both are from before recording began.
bool SegmentMap::knows(const Segment& segment, const Span& block) noexcept {
    return segment.born < block.number || (segment.shadow && block.shadow);
}

i64 SegmentMap::overlap(const Segment& segment, const Span& block) noexcept {
    const u64 low = std::max(segment.ptr, block.ptr);
    const u64 high = std::min(segment.ptr + static_cast<u64>(segment.size), block.ptr + static_cast<u64>(block.size));
    return high > low ? static_cast<i64>(high - low) : 0;
}

void SegmentMap::change(Segment& segment, const Span& block, i64 sign) {
    copy_peak(segment);
    i64& bytes = segment.now.bytes[block.pool];
    bytes = plus(bytes, sign * overlap(segment, block));
    segment.now.blocks[block.pool] += sign;
}

void SegmentMap::look_for_peak() {
    peak_lasts_ = false;
    if (driver_bytes_ < peak_driver_bytes_) return;
    if (driver_bytes_ == peak_driver_bytes_ && pool_bytes_ <= peak_pool_bytes_) return;
    peak_driver_bytes_ = driver_bytes_;
    peak_pool_bytes_ = pool_bytes_;
    begin_peak();
}

void SegmentMap::begin_peak() {
    ++peak_;
    peak_lasts_ = true;
    ended_.clear();
}

}  // namespace memscope::kernel
