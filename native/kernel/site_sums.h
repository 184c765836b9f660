// The sums by which a site can be judged, kept step by step: what was born and freed in each, how much of what was born
// there is gone, and at what age blocks died. msmemscope/analysis/verdict/sums.py says what every number means, how
// tables merge and what is asked of them; this is the fold that keeps them.
//
//   open    what happens in the open step is kept apart until it closes: a program frees everything after its last
//           step, and what leaked must still be seen then.
//   kept    a site has rows from the first step on that one of its blocks outlived. What comes and goes within steps,
//           most of what a program does, costs nothing here but its counters.
//   run     equal rows of neighbouring cells are one run. A site that does the same in every step has two or three of
//           them, whether it leaks, or hands a block from step to step, or keeps the latest 200; a life that differs
//           from step to step has one run per cell.
//   thin    a cell is `stride` steps. The stride doubles when there are more than kMostCells cells, or more than
//           max_runs runs: memory does not depend on the length of the run.
//
// Memory: 64 bytes for every site, 150 to 300 more for one that is kept (a run is 64).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

class SiteSums {
public:
    // As in sums.py: MAX_CELLS, AGE_CLASSES, WARM_UP.
    static constexpr u32 kMostCells = 1024;
    static constexpr u32 kAgeClasses = 96;
    static constexpr u32 kWarmUp = 1;
    static constexpr u32 kOldAge = 2;

    explicit SiteSums(std::size_t max_runs) : max_runs_(max_runs) {}

    // The process's first event is in this step.
    void start(u32 step) noexcept;

    // A block of a site, in the open step.
    void born(u32 id, i64 bytes) {
        Values& now = open(id);
        now.born += 1;
        now.born_bytes += static_cast<u64>(bytes);
    }
    // Its end, in the open step.
    void freed(u32 id, u32 birth_step, u32 open_step, i64 bytes) {
        Values& now = open(id);
        now.freed += 1;
        now.freed_bytes += static_cast<u64>(bytes);
        if (birth_step == open_step) {
            now.gone += 1;
            now.gone_bytes += static_cast<u64>(bytes);
        } else {
            if (birth_step > origin_ && open_step - birth_step >= kOldAge) now.old += 1;
            deaths_.emplace_back(id, birth_step, bytes);
        }
    }

    [[gnu::always_inline]] void fetch(u32 site) const noexcept {
        if (site < sites_.size()) __builtin_prefetch(&sites_[site], 1);
    }

    // Gives back the memory that was kept for more to come.
    void shrink();

    // The open step `step` ends, and `next` begins.
    void close(u32 step, u32 next);

    u32 stride() const noexcept { return stride_; }
    void append(SumTable& table, u32 open_step) const;
    void append(AgeTable& table, u32 open_step) const;

private:
    struct Values {
        u64 born = 0, freed = 0, old = 0, gone = 0;
        u64 born_bytes = 0, freed_bytes = 0, gone_bytes = 0;  // those of a damaged ring wrap around

        void add(const Values& other) noexcept;
        bool operator==(const Values& other) const noexcept;
    };

    struct Run {
        u32 first = 0, cells = 0;
        Values values;  // of each of its cells

        u32 end() const noexcept { return first + cells; }
    };

    // Runs of one site, by cell; cells without a run are empty.
    using Runs = std::vector<Run>;

    using Ages = std::vector<std::pair<u8, u64>>;  // class, blocks

    struct Kept {
        Runs runs;
        Ages ages;
    };

    struct alignas(64) Site {        // one line of the cache
        Values open;                 // the open step: what was born, and of it what is gone; what else was freed
        std::unique_ptr<Kept> kept;  // null: it has no rows

        // In open_sites_.
        bool is_listed() const noexcept { return open.born != 0 || open.freed != 0; }
    };
    static_assert(sizeof(Site) == 64);

    // The end of a block of a closed step in the open one.
    struct Death {
        u32 site = 0, birth = 0;
        i64 bytes = 0;

        Death() = default;
        // Made where it stays: a copy of it as a whole would wait for its parts to be written.
        Death(u32 of, u32 step, i64 size) noexcept : site(of), birth(step), bytes(size) {}
    };

    static u8 age_class(u32 age) noexcept;
    // Of the open step. Whoever asks for it counts something at once.
    Values& open(u32 id) {
        if (id >= sites_.size()) sites_.resize(std::size_t{id} + 1);
        Site& site = sites_[id];
        if (!site.is_listed()) open_sites_.push_back(id);
        return site.open;
    }
    static Kept& keep(Site& site);
    void sort_deaths();
    void book_deaths(u32 step);
    void add(Runs& runs, u32 cell, const Values& values);
    static Runs::iterator cut_out(Runs& runs, Runs::iterator at, u32 cell);
    static void append_values(SumTable& table, u32 site, u32 cell, u32 cells, const Values& values, bool late);
    static Values gone(const Death& death) noexcept;
    static bool has_rows(const Site& site) noexcept;
    void thin();
    static void count_age(Ages& ages, u8 age, u64 blocks);

    const std::size_t max_runs_;
    std::size_t run_limit_ = 0;  // max_runs_, or more when thinning cannot help
    std::size_t runs_ = 0;       // of all sites
    u32 origin_ = kWarmUp;
    u32 stride_ = 1;
    std::vector<Site> sites_;
    std::vector<u32> open_sites_;
    std::vector<Death> deaths_;
};

}  // namespace memscope::kernel
