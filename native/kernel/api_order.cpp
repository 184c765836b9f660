#include "kernel/api_order.h"

#include <algorithm>

namespace memscope::kernel {

ApiOrder::Clock ApiOrder::clock_of(PoolKey pool, u32 stream) {
    const Family family = family_of(pool);
    if (stream == kNoStream || family == Family::COUNT || !pool.has_streams()) return clock_of(family);
    return obtain_clock({pool.device_type, pool.device, stream});
}

ApiOrder::Clock ApiOrder::obtain_clock(const StreamKey& key) {
    if (latest_stream_ < streams_.size() && streams_[latest_stream_] == key)
        return static_cast<Clock>(kFamilies + latest_stream_);
    const auto known = std::find(streams_.begin(), streams_.end(), key);
    if (known == streams_.end()) {
        if (streams_.size() == kMaxStreams) return kNoClock;
        clocks_.emplace_back();
        streams_.push_back(key);
        return static_cast<Clock>(clocks_.size() - 1);
    }
    latest_stream_ = static_cast<std::size_t>(known - streams_.begin());
    return static_cast<Clock>(kFamilies + latest_stream_);
}

Family ApiOrder::family_by(Clock clock) const noexcept {
    if (clock < kFamilies) return static_cast<Family>(clock);
    const u8 device_type = streams_[clock - kFamilies].device_type;
    return device_type == static_cast<u8>(DeviceType::CUDA) ? Family::CUDA : Family::PTA;
}

void ApiOrder::start(u32 tid, u32 framework, StreamKey where) {
    Open* open = obtain(tid, framework);
    if (open == nullptr) return;
    if (rule_ == Rule::BY_THREAD && open->depth != 0) {
        open->depth += 1;
        return;
    }
    if (open->depth == 0) {  // else it takes the place of another, whose blocks are its own now
        open->families = {};
        open->streams.clear();
    }
    open->depth = 1;
    open->is_given = false;
    operators_ += 1;
    if (framework == kAtb) {
        number(*open, clock_of(Family::ATB));
        return;
    }
    for (const Family family : {Family::PTA, Family::HOST, Family::CUDA}) number(*open, clock_of(family));
    if (where.stream == kNoStream) return;
    if (const Clock clock = obtain_clock(where); clock != kNoClock) number(*open, clock);
}

// It begins by a clock.
void ApiOrder::number(Open& open, Clock clock) {
    const u64 latest = clocks_[clock].latest;
    if (Part& part = part_of(open, clock); part.api <= latest) part.api = ++clocks_[clock].latest;
}

// Its number by a clock, which is the next when it has none yet.
ApiOrder::Part& ApiOrder::part_of(Open& open, Clock clock) {
    if (clock < kFamilies) {
        Part& part = open.families[clock];
        if (part.api == 0) part.api = ++clocks_[clock].latest;
        return part;
    }
    for (auto& [of, part] : open.streams)
        if (of == clock) return part;
    open.streams.push_back({clock, Part{++clocks_[clock].latest, false, false}});
    return open.streams.back().second;
}

void ApiOrder::end(u32 tid, u32 framework) {
    Open* open = find(tid, framework);
    if (open == nullptr || --open->depth != 0) return;
    is_full_ = false;
    for (std::size_t family = 0; family < kFamilies; ++family)
        note_end(static_cast<Clock>(family), open->families[family]);
    for (const auto& [clock, part] : open->streams) note_end(clock, part);
}

void ApiOrder::note_end(Clock clock, const Part& part) noexcept {
    State& state = clocks_[clock];
    if (part.has_malloc) state.last_malloc = std::max(state.last_malloc, part.api);
    if (part.has_free) state.last_free = std::max(state.last_free, part.api);
}

ApiOrder::Moment ApiOrder::malloc(Clock clock, u32 tid) {
    return happen(around(clock, tid), clock, &Part::has_malloc, &State::last_malloc);
}

ApiOrder::Moment ApiOrder::free(Clock clock, u32 tid) {
    return happen(around(clock, tid), clock, &Part::has_free, &State::last_free);
}

ApiOrder::Moment ApiOrder::access(Clock clock, u32 tid) {
    Open* const open = around(clock, tid);
    const Moment moment = happen(open, clock, nullptr, nullptr);
    if (open != nullptr) open->is_given = true;
    u64& last = clocks_[clock].last_access;
    last = std::max(last, moment.api);
    return moment;
}

ApiOrder::Moment ApiOrder::happen(Open* open, Clock clock, bool Part::* what, u64 State::* last) {
    if (open != nullptr) {
        Part& part = part_of(*open, clock);
        if (what != nullptr) part.*what = true;
        return {part.api, operators_, open->is_given};
    }
    State& state = clocks_[clock];
    state.latest += 1;
    if (last != nullptr) state.*last = state.latest;
    return {state.latest, operators_, false};
}

// The operator in which it happens; null: it is outside of any. Nobody tells those of MindSpore.
ApiOrder::Open* ApiOrder::around(Clock clock, u32 tid) {
    const Family family = family_by(clock);
    return family == Family::MINDSPORE ? nullptr : find(tid, family == Family::ATB ? kAtb : 0);
}

ApiOrder::Open* ApiOrder::find(u32 tid, u32 framework) {
    const u64 wanted = key(tid, framework);
    if (known_ == nullptr || known_key_ != wanted) {
        const auto found = threads_.find(wanted);
        if (found == threads_.end()) return nullptr;
        known_key_ = wanted;
        known_ = &found->second;
    }
    return known_->depth != 0 ? known_ : nullptr;
}

ApiOrder::Open* ApiOrder::obtain(u32 tid, u32 framework) {
    const u64 wanted = key(tid, framework);
    if (known_ != nullptr && known_key_ == wanted) return known_;
    if (threads_.size() >= kMaxThreads && threads_.find(wanted) == threads_.end()) {
        if (is_full_) return nullptr;  // looked through, and none has ended since
        known_ = nullptr;
        for (auto at = threads_.begin(); at != threads_.end();) at = at->second.depth == 0 ? threads_.erase(at) : ++at;
        is_full_ = threads_.size() >= kMaxThreads;
        if (is_full_) return nullptr;
    }
    known_ = &threads_[wanted];
    known_key_ = wanted;
    return known_;
}

}  // namespace memscope::kernel
