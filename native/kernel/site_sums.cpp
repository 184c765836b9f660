#include "kernel/site_sums.h"

#include <algorithm>
#include <utility>

namespace memscope::kernel {

namespace {

constexpr u32 kExactAges = 32;

// Most sites have two or three runs and a single age: doubling would waste half of the memory.
template <typename Rows>
void make_room(Rows& rows, std::size_t more) {
    if (rows.capacity() - rows.size() < more) rows.reserve(rows.size() + rows.size() / 4 + more);
}

}  // namespace

void SiteSums::Values::add(const Values& other) noexcept {
    born += other.born;
    freed += other.freed;
    old += other.old;
    gone += other.gone;
    born_bytes += other.born_bytes;
    freed_bytes += other.freed_bytes;
    gone_bytes += other.gone_bytes;
}

bool SiteSums::Values::operator==(const Values& other) const noexcept {
    return born == other.born && freed == other.freed && old == other.old && gone == other.gone &&
           born_bytes == other.born_bytes && freed_bytes == other.freed_bytes && gone_bytes == other.gone_bytes;
}

u8 SiteSums::age_class(u32 age) noexcept {
    if (age < kExactAges) return static_cast<u8>(age);
    const u32 octave = 31 - static_cast<u32>(__builtin_clz(age));
    return static_cast<u8>(std::min(kExactAges + 4 * (octave - 5) + ((age >> (octave - 2)) & 3), kAgeClasses - 1));
}

void SiteSums::start(u32 step) noexcept { origin_ = std::max(step, kWarmUp); }

SiteSums::Kept& SiteSums::keep(Site& site) {
    if (site.kept == nullptr) site.kept = std::make_unique<Kept>();
    return *site.kept;
}

void SiteSums::shrink() {
    for (const Site& site : sites_) {
        if (site.kept == nullptr) continue;
        site.kept->runs.shrink_to_fit();
        site.kept->ages.shrink_to_fit();
    }
    sites_.shrink_to_fit();
    open_sites_.shrink_to_fit();
    deaths_.shrink_to_fit();
}

SiteSums::Values SiteSums::gone(const Death& death) noexcept {
    Values values;
    values.gone = 1;
    values.gone_bytes = static_cast<u64>(death.bytes);
    return values;
}

void SiteSums::close(u32 step, u32 next) {
    for (const u32 id : open_sites_) {
        Site& site = sites_[id];
        if (has_rows(site)) {
            Kept& kept = keep(site);
            add(kept.runs, step / stride_, site.open);
            if (step > origin_ && site.open.gone != 0) count_age(kept.ages, 0, site.open.gone);
        }
        site.open = Values{};
    }
    open_sites_.clear();
    sort_deaths();
    book_deaths(step);
    while (next > origin_ && (next - 1) / stride_ - origin_ / stride_ >= kMostCells) thin();
    run_limit_ = std::max(run_limit_, max_runs_);
    while (runs_ > run_limit_) {
        if (stride_ > next) {  // then every site has one cell, and only sites are left to blame
            run_limit_ = 2 * runs_;
            break;
        }
        thin();
    }
}

// Puts those of one site one after the other, in the order in which they came: its runs are in the cache then. Where
// few sites have several it would gain nothing.
void SiteSums::sort_deaths() {
    if (deaths_.size() < sites_.size()) return;
    std::vector<u32> places(sites_.size());  // where the next of each site goes
    for (const Death& death : deaths_) ++places[death.site];
    u32 before = 0;
    for (u32& place : places) before += std::exchange(place, before);
    std::vector<Death> sorted(deaths_.size());
    for (const Death& death : deaths_) sorted[places[death.site]++] = death;
    deaths_ = std::move(sorted);
}

// To find a cell, and to join it with its neighbours, costs most: deaths of one site behind each other are booked
// together by the step of their birth, in the order in which these came.
void SiteSums::book_deaths(u32 step) {
    struct Born {
        u32 step;
        u64 blocks;
        Values values;
    };
    std::array<Born, 16> births;  // of a site that has more they are booked in several turns
    std::size_t found = 0;
    const auto book = [&](u32 site) {
        Kept& kept = keep(sites_[site]);
        for (std::size_t at = 0; at < found; ++at) {
            const Born& born = births[at];
            add(kept.runs, born.step / stride_, born.values);
            if (born.step > origin_) count_age(kept.ages, age_class(step - born.step), born.blocks);
        }
        found = 0;
    };
    u32 site = 0;
    for (const Death& death : deaths_) {
        if (found != 0 && death.site != site) book(site);
        site = death.site;
        std::size_t at = 0;
        while (at < found && births[at].step != death.birth) ++at;
        if (at == births.size()) {
            book(site);
            at = 0;
        }
        if (at == found) births[found++] = Born{death.birth, 0, Values{}};
        births[at].blocks += 1;
        births[at].values.add(gone(death));
    }
    if (found != 0) book(site);
    deaths_.clear();
}

void SiteSums::count_age(Ages& ages, u8 age, u64 blocks) {
    for (auto& [known, count] : ages) {
        if (known != age) continue;
        count += blocks;
        return;
    }
    make_room(ages, 1);
    ages.emplace_back(age, blocks);
}

// Gives one cell of a run a run of its own.
SiteSums::Runs::iterator SiteSums::cut_out(Runs& runs, Runs::iterator at, u32 cell) {
    const Run whole = *at;
    Run pieces[3];
    std::size_t n = 0;
    if (cell > whole.first) pieces[n++] = Run{whole.first, cell - whole.first, whole.values};
    const std::size_t mine = n;
    pieces[n++] = Run{cell, 1, whole.values};
    if (whole.end() > cell + 1) pieces[n++] = Run{cell + 1, whole.end() - cell - 1, whole.values};
    *at = pieces[0];
    const auto place = at - runs.begin();
    make_room(runs, n - 1);
    at = runs.begin() + place;
    return runs.insert(at + 1, pieces + 1, pieces + n) - 1 + static_cast<std::ptrdiff_t>(mine);
}

// Adds to one cell: takes it out of its run, and joins it with its neighbours where they are equal now.
void SiteSums::add(Runs& runs, u32 cell, const Values& values) {
    const std::size_t before = runs.size();
    auto at = std::upper_bound(runs.begin(), runs.end(), cell, [](u32 one, const Run& run) { return one < run.first; });
    if (at != runs.begin() && std::prev(at)->end() > cell) {
        --at;
        if (at->cells != 1) at = cut_out(runs, at, cell);
    } else {
        const auto place = at - runs.begin();
        make_room(runs, 1);
        at = runs.insert(runs.begin() + place, Run{cell, 1, Values{}});
    }
    at->values.add(values);
    const auto join = [&runs](Runs::iterator left) {
        const auto right = left + 1;
        if (left->end() != right->first || !(left->values == right->values)) return;
        left->cells += right->cells;
        runs.erase(right);
    };
    if (at + 1 != runs.end()) join(at);
    if (at != runs.begin()) join(at - 1);
    runs_ += runs.size() - before;
}

// Every pair of cells becomes one.
void SiteSums::thin() {
    stride_ *= 2;
    for (Site& site : sites_) {
        if (site.kept == nullptr) continue;
        Runs& runs = site.kept->runs;
        const Runs old = std::move(runs);
        runs = {};
        runs_ -= old.size();
        for (const Run& run : old) {
            u32 first = run.first, cells = run.cells;
            if (first % 2 == 1) {
                add(runs, first / 2, run.values);
                first += 1;
                cells -= 1;
            }
            if (cells >= 2) {  // no run lies there yet: they come in order
                Run pairs{first / 2, cells / 2, run.values};
                pairs.values.add(run.values);
                const bool joins =
                    !runs.empty() && runs.back().end() == pairs.first && runs.back().values == pairs.values;
                if (joins) {
                    runs.back().cells += pairs.cells;
                } else {
                    make_room(runs, 1);
                    runs.push_back(pairs);
                    runs_ += 1;
                }
            }
            if (cells % 2 == 1) add(runs, (first + cells - 1) / 2, run.values);
        }
    }
}

void SiteSums::append_values(SumTable& table, u32 site, u32 cell, u32 cells, const Values& values, bool late) {
    table.site.push_back(site);
    table.cell.push_back(cell);
    table.cells.push_back(cells);
    table.born_blocks.push_back(static_cast<i64>(values.born));
    table.born_bytes.push_back(static_cast<i64>(values.born_bytes));
    table.freed_blocks.push_back(static_cast<i64>(values.freed));
    table.freed_bytes.push_back(static_cast<i64>(values.freed_bytes));
    table.old_blocks.push_back(static_cast<i64>(values.old));
    table.gone_blocks.push_back(static_cast<i64>(values.gone));
    table.gone_bytes.push_back(static_cast<i64>(values.gone_bytes));
    table.late.push_back(late ? Bool::YES : Bool::NO);
}

bool SiteSums::has_rows(const Site& site) noexcept { return site.kept != nullptr || site.open.born != site.open.gone; }

void SiteSums::append(SumTable& table, u32 open_step) const {
    const u32 open_cell = open_step / stride_;
    const std::size_t most = table.site.size() + runs_ + 2 * open_sites_.size() + deaths_.size();
#define X(type, name) table.name.reserve(most);
    MEMSCOPE_SUM_COLUMNS(X)
#undef X
    for (std::size_t at = 0; at < sites_.size(); ++at) {
        const u32 id = static_cast<u32>(at);
        const Site& site = sites_[at];
        if (site.kept != nullptr)
            for (const Run& run : site.kept->runs) append_values(table, id, run.first, run.cells, run.values, false);
        if (!has_rows(site)) continue;
        Values births, rest = site.open;
        births.born = rest.born;
        births.born_bytes = rest.born_bytes;
        rest.born = 0;
        rest.born_bytes = 0;
        if (births.born != 0) append_values(table, id, open_cell, 1, births, false);
        if (rest.freed != 0) append_values(table, id, open_cell, 1, rest, true);
    }
    for (const Death& death : deaths_) append_values(table, death.site, death.birth / stride_, 1, gone(death), true);
}

void SiteSums::append(AgeTable& table, u32 open_step) const {
    const auto append_row = [&table](u32 site, u8 age, u64 blocks, bool late) {
        table.site.push_back(site);
        table.age_class.push_back(age);
        table.blocks.push_back(static_cast<i64>(blocks));
        table.late.push_back(late ? Bool::YES : Bool::NO);
    };
    for (std::size_t at = 0; at < sites_.size(); ++at) {
        const u32 id = static_cast<u32>(at);
        const Site& site = sites_[at];
        if (site.kept != nullptr)
            for (const auto& [age, blocks] : site.kept->ages) append_row(id, age, blocks, false);
        if (has_rows(site) && open_step > origin_ && site.open.gone != 0) append_row(id, 0, site.open.gone, true);
    }
    for (const Death& death : deaths_)
        if (death.birth > origin_) append_row(death.site, age_class(open_step - death.birth), 1, true);
}

}  // namespace memscope::kernel
