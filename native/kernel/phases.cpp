#include "kernel/phases.h"

#include <algorithm>

#include "kernel/pool_owners.h"
#include "kernel/wrapping.h"

namespace memscope::kernel {

// ----------------------------------------------------------------------------------------------- the ring's

Phases::Heard Phases::begin(u32 tid, const Phase& phase, u64 id) {
    const auto same = [&](const Phase& one) {
        return one.component == phase.component && one.name == phase.name && one.is_range == phase.is_range;
    };
    const auto known = std::find_if(known_.begin(), known_.end(), same);
    const auto number = static_cast<u32>(known - known_.begin());
    const bool is_known = known != known_.end();
    const auto within = std::find_if(runs_.begin(), runs_.end(),
                                     [&](const Run& run) { return is_known && run.tid == tid && run.phase == number; });
    const bool has_room = runs_.size() < kMaxRuns && (is_known || known_.size() < kMaxPhases);
    if (within == runs_.end() && has_room) {
        if (!is_known) known_.push_back(phase);
        known_[number].runs += 1;
        runs_.push_back({++begun_, tid, number, 1, {}});
        if (phase.is_range) runs_.back().begun.push_back(id);
        return Heard::CHANGE;
    }
    if (!phase.is_range) {
        if (const At latest = latest_of_label(tid, phase.name); latest != runs_.end()) latest->labels += 1;
    } else if (within != runs_.end()) {
        if (within->begun.size() >= kMaxRuns) return Heard::LEFT_OUT;
        within->begun.push_back(id);
    }
    return within == runs_.end() ? Heard::LEFT_OUT : Heard::NOTHING;
}

// The end: there is none.
Phases::At Phases::latest_of_label(u32 tid, u64 name) {
    const auto latest = std::find_if(runs_.rbegin(), runs_.rend(), [&](const Run& run) {
        const Phase& phase = known_[run.phase];
        return run.tid == tid && !phase.is_range && phase.name == name;
    });
    return latest == runs_.rend() ? runs_.end() : std::prev(latest.base());
}

Phases::Heard Phases::end_label(u32 tid, u64 name) {
    const At run = latest_of_label(tid, name);
    if (run == runs_.end()) return Heard::NOTHING;  // it began before anybody looked, or was left out
    run->labels -= 1;
    return run->labels == 0 ? end(run) : Heard::NOTHING;
}

Phases::Heard Phases::hear_range(const EventColumns& events, std::size_t row) {
    const u32 tid = events.tid[row], aux = events.aux[row];
    const u64 id = events.attr[row], name = events.name[row];
    switch (static_cast<Kind>(events.kind[row])) {
        case Kind::RANGE_START:
            // One without a name, for which there was no room, is nobody's phase.
            return aux == 0 && name != 0 ? begin(tid, {0, name, true, 0}, id << 1) : Heard::NOTHING;
        case Kind::RANGE_END:
            return aux == 0 ? end_range(tid, id, false) : Heard::NOTHING;
        case Kind::CALL:
            if (aux == static_cast<u32>(CallKind::RANGE_BEGUN))
                return name != 0 ? begin(tid, {0, name, true, 0}, events.ts[row] << 1 | 1) : Heard::NOTHING;
            return aux == static_cast<u32>(CallKind::RANGE) ? end_range(tid, id, true) : Heard::NOTHING;
        default:
            return Heard::NOTHING;
    }
}

// A range of mstx may end on another thread. is_of_program: its id is the time at which it began.
Phases::Heard Phases::end_range(u32 tid, u64 id, bool is_of_program) {
    const u64 wanted = id << 1 | (is_of_program ? 1 : 0);
    for (const bool own : {true, false}) {
        for (std::size_t at = runs_.size(); at-- > 0;) {
            std::vector<u64>& begun = runs_[at].begun;
            if ((runs_[at].tid == tid) != own) continue;
            const auto last = std::find(begun.rbegin(), begun.rend(), wanted);
            if (last == begun.rend()) continue;
            begun.erase(std::prev(last.base()));
            return begun.empty() ? end(runs_.begin() + static_cast<std::ptrdiff_t>(at)) : Heard::NOTHING;
        }
    }
    return Heard::NOTHING;
}

Phases::Heard Phases::end(At run) {
    runs_.erase(run);
    return Heard::CHANGE;
}

Phases::Heard Phases::forget() {
    if (runs_.empty()) return Heard::NOTHING;
    runs_.clear();
    return Heard::CHANGE;
}

// ----------------------------------------------------------------------------------------------- a pool's

PoolPhases::PoolPhases(const PoolOwners& owners) : changes_(owners.changes()) {
    owners.each_now([this](OwnerNumber owner, i64 bytes) {
        if (owner >= cells_.size()) cells_.resize(owner + std::size_t{1});
        cells_[owner] = {bytes, bytes, false};
        level_ = plus(level_, bytes);
    });
}

void PoolPhases::change(OwnerNumber owner, i64 by) {
    if (owner >= cells_.size()) cells_.resize(owner + std::size_t{1});
    Cell& one = cells_[owner];
    one.now = plus(one.now, by);
    level_ = plus(level_, by);
    if (one.has_changed) return;
    one.has_changed = true;
    changed_.push_back(owner);
}

void PoolPhases::note(u64 allocs, u32 step) {
    stretch_ = {level_, allocs, changes_, step};
    for (const OwnerNumber owner : changed_) {
        cells_[owner].at_peak = cells_[owner].now;
        cells_[owner].has_changed = false;
    }
    changed_.clear();
}

void PoolPhases::correct_owner(OwnerNumber from, OwnerNumber to, i64 size, u64 id, u64 changed) {
    change(from, -size);
    change(to, size);
    if (stretch_.knows(id, changed)) {
        cells_[from].at_peak = minus(cells_[from].at_peak, size);
        cells_[to].at_peak = plus(cells_[to].at_peak, size);
    }
    if (id > newest_) return;
    for (Peak& peak : peaks_)
        if (peak.is_seen && peak.at.knows(id, changed)) peak.move(from, to, size);
}

void PoolPhases::Peak::move(OwnerNumber from, OwnerNumber to, i64 size) {
    for (const auto& [owner, by] : {Owned{from, minus(0, size)}, Owned{to, size}}) {
        const auto place = std::lower_bound(owners.begin(), owners.end(), owner,
                                            [](const Owned& one, OwnerNumber wanted) { return one.owner < wanted; });
        if (place != owners.end() && place->owner == owner)
            place->bytes = plus(place->bytes, by);
        else
            owners.insert(place, {owner, by});
    }
}

void PoolPhases::take_over() {
    for (const Run& run : runs_) {
        if (run.phase >= peaks_.size()) peaks_.resize(run.phase + std::size_t{1});
        Peak& peak = peaks_[run.phase];
        if (peak.is_seen && stretch_.level <= peak.at.level) continue;
        peak.is_seen = true;
        peak.at = stretch_;
        peak.start = run.start;
        peak.owners.clear();
        for (std::size_t owner = 0; owner < cells_.size(); ++owner)
            if (cells_[owner].at_peak != 0)
                peak.owners.push_back({static_cast<OwnerNumber>(owner), cells_[owner].at_peak});
        newest_ = std::max(newest_, stretch_.allocs);
    }
}

void PoolPhases::follow(const std::vector<Phases::Run>& runs, bool is_seen, u64 allocs, u32 step) {
    take_over();
    note(allocs, step);  // the next one's peak is at first the level at its start
    std::size_t kept = 0, at = 0;
    for (const Run& run : runs_) {
        while (at < runs.size() && runs[at].number < run.number) ++at;
        if (at < runs.size() && runs[at].number == run.number) {
            runs_[kept++] = run;
        } else if (is_seen) {
            peaks_[run.phase].kept = plus(peaks_[run.phase].kept, minus(level_, run.start));
            peaks_[run.phase].ended += 1;
        }
    }
    const u64 latest = runs_.empty() ? 0 : runs_.back().number;
    runs_.resize(kept);
    for (const Phases::Run& run : runs)
        if (run.number > latest) runs_.push_back({run.number, run.phase, level_});
}

void PoolPhases::append(PhaseTable& table, PhaseOwnerTable& owners, PoolKey pool, const std::vector<Phase>& known,
                        const OwnerNames& names) const {
    PoolPhases now = *this;
    now.take_over();
    for (std::size_t phase = 0; phase < now.peaks_.size(); ++phase) {
        const Peak& peak = now.peaks_[phase];
        if (!peak.is_seen) continue;
        const auto row = static_cast<u32>(table.step.size());
        table.device_type.push_back(pool.device_type);
        table.device.push_back(pool.device);
        table.pool.push_back(pool.pool);
        table.component.push_back(known[phase].component);
        table.name.push_back(known[phase].name);
        table.is_range.push_back(known[phase].is_range ? Bool::YES : Bool::NO);
        table.runs.push_back(known[phase].runs);
        table.ended.push_back(peak.ended);
        table.step.push_back(peak.at.step);
        table.start_bytes.push_back(peak.start);
        table.peak_bytes.push_back(peak.at.level);
        table.kept_bytes.push_back(peak.kept);
        for (const Owned& one : peak.owners) {
            if (one.bytes == 0) continue;
            owners.row.push_back(row);
            owners.owner.push_back(names.id(one.owner));
            owners.bytes.push_back(one.bytes);
        }
    }
}

}  // namespace memscope::kernel
