// Pairs the MALLOC and FREE events of one ring and keeps what an analysis needs of them, in one pass.
//
// In: batches of event columns, in the order of the ring. Out: the tables of tables.h, at any time. This file knows
// which block an event belongs to, and tells it the folds beside it: sites.h, site_sums.h and site_peaks.h (who
// allocates), owners.h (whose it is), phases.h (what the program does meanwhile), pool_steps.h and step_clock.h (when),
// block_uses.h (who touches it),
// block_lives.h and segment_map.h (each block's life, and where it lay), running.h (the operator that allocates),
// inefficiency.h (what it could have done without). Nothing here knows files or Python; module/kernel.cpp binds it.
//
//   key     a block is (device type, device, pool, address). The same address in another pool is another block: the
//           driver's segment and the framework's first block in it start at the same place. So is a handle of physical
//           memory that happens to equal an address.
//   worker  a process with a parent that makes no STEP itself hears of steps only when it does something: those in
//           which it did nothing make one row together, for the last of them. A hundred idle workers cost nothing.
//   shadow  a block from before recording began comes when recording comes on, with its true time: it is alive from
//           there on, counts as an allocation of that step, and says nothing about when a step began.
//   late    a block of a closed step that has ended in the open one. Programs free everything after their last step,
//           and what leaked must still be seen then.
//
// Memory depends on the live blocks, and on the folds' own limits, never on the number of events.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernel/address_order.h"
#include "kernel/anomalies.h"
#include "kernel/block_lives.h"
#include "kernel/block_map.h"
#include "kernel/block_uses.h"
#include "kernel/event_columns.h"
#include "kernel/inefficiency.h"
#include "kernel/owners.h"
#include "kernel/phases.h"
#include "kernel/pool_key.h"
#include "kernel/pool_steps.h"
#include "kernel/running.h"
#include "kernel/site_peaks.h"
#include "kernel/site_sums.h"
#include "kernel/sites.h"
#include "kernel/step_clock.h"
#include "kernel/stream_needs.h"
#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxPools = 128;  // pools on devices
// Steps without any event that still get a row each when a process skips them; and all rows of such steps, over its
// pools, beyond which only the last of the steps that are skipped gets one.
inline constexpr u32 kMaxSilentSteps = 1u << 13;
inline constexpr u64 kMaxSilentRows = 1u << 20;

// Made together: both need all judged blocks that are alive.
struct InefficiencyTables {
    InefficiencyTable rows;
    FloorTable floors;
};

struct PhaseTables {
    PhaseTable rows;
    PhaseOwnerTable owners;
};

class BlockTracker {
public:
    // max_runs: of the sums (site_sums.h); 0: they are not kept. lives: whether they are followed.
    explicit BlockTracker(std::size_t max_sites, std::size_t max_runs = 0, bool lives = false);

    // Another process forked or started this one: what it frees may have been its parent's.
    void set_parent(bool has_parent) noexcept { has_parent_ = has_parent; }

    // The next events, in ring order. enriched: null, or gets n rows.
    void feed(const EventColumns& events, EnrichTable* enriched);

    // Gives back the memory that was kept for more to come. More may come all the same.
    void shrink();

    u32 step() const noexcept { return clock_.step(); }  // the open one; 0 before the first event
    RingFacts facts() const noexcept;
    SiteTable sites() const;
    StepTable steps() const;
    LiveTable live() const;  // every block alive now
    LiveTable held() const;  // the same, and the late ones
    AnomalyTable anomalies() const;
    BeginTable begins() const;
    SumTable sums() const;  // by windows of time where the process has made no step, else by steps
    AgeTable ages() const;

    // Without lives these are empty.
    std::size_t ended_lives() const noexcept { return lives_ == nullptr ? 0 : lives_->ended(); }
    LifeTable take_ended_lives() { return lives_ == nullptr ? LifeTable{} : lives_->take_ended(); }
    void forget_lives() noexcept {  // nobody takes them any more
        lives_.reset();
        running_.reset();
    }
    LifeTable going_lives() const;  // of all that are alive, in the order of allocation
    SegmentTable segments() const { return lives_ == nullptr ? SegmentTable{} : lives_->segments(); }

    OwnerTable owners() const;
    OwnerSumTable owner_sums() const;
    OwnerPeakTable owner_peaks() const;
    OwnedSiteSumTable owned_site_sums() const;
    OwnedSitePeakTable owned_site_peaks() const;
    OwnerChangeTable owner_changes() const { return owners_.changes(); }
    InefficiencyTables inefficiencies() const;
    PhaseTables phases() const;

    PoolPeakTable pool_peaks() const;
    SitePeakTable site_peaks() const;

private:
    struct PoolBlocks {
        PoolKey key;
        const bool has_streams;
        PoolSteps steps;
        BlockMap blocks;
        std::vector<Block> late;  // cleared when the step closes
        SiteIndex sites;
        // Addresses in order, for an access or a label to the middle of a block. Made when the first such event comes:
        // keeping it costs more than all the rest, and most runs have none.
        std::unique_ptr<AddressOrder> ordered;
        OwnedBytes owners;
        PoolPeaks peaks;
        StreamNeeds needs;
        u64 lowest = ~u64{0}, beyond = 0;  // between which all its blocks have lain

        PoolBlocks(PoolKey pool, u32 step, u64 ts) : key(pool), has_streams(pool.has_streams()), steps(step, ts) {}
        // The live block that holds an address; null: none does.
        Block* holding(u64 ptr);
    };

    // What one event did, as the columns of EnrichTable.
    struct Outcome {
        u64 allocation_id = 0;
        i64 size = 0;
        i64 live_after = -1;
        u64 ended_id = 0;
        i64 ended_size = 0;
    };

    void fetch_ahead(const PoolBlocks& pool, const EventColumns& events, std::size_t row) const;
    static void enrich(EnrichTable& table, const Outcome& outcome);
    void hear(const EventColumns& events, std::size_t row, u32 step);
    void on_malloc(PoolBlocks& pool, const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_free(PoolBlocks& pool, const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_access(const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_label(const EventColumns& events, std::size_t row);
    Belongs belongs_of(const Block& block, Shown inefficient) const noexcept;
    void on_other(const EventColumns& events, std::size_t row, u32 step);
    void on_phase(Phases::Heard heard, bool is_seen = true);
    void lose_sight();
    // tid: of the FREE.
    void end_block(PoolBlocks& pool, Block& block, u64 ts, u32 tid, bool seen);

    PoolBlocks* obtain_pool(PoolKey key);  // null: there are too many
    void close_steps(u32 next, u32 most_silent);
    void advance_window();
    // Its steps are those of the process that started it.
    bool follows() const noexcept { return has_parent_ && clock_.boundaries() == 0; }
    LiveTable blocks(bool with_late) const;
    void append(LiveTable& table, const PoolBlocks& pool, const Block& block, bool late) const;

    const std::size_t max_runs_;
    bool has_parent_ = false;
    u64 events_ = 0, allocs_ = 0, silent_rows_ = 0;
    u32 launches_ = 0;
    StepClock clock_;
    Sites sites_;
    SitePeaks site_peaks_;
    std::vector<std::unique_ptr<PoolBlocks>> pools_;
    Anomalies anomalies_;
    std::unique_ptr<SiteSums> sums_;
    std::unique_ptr<SiteSums> windows_;  // while the process has made no step
    u32 window_ = 0;                     // the open one; the first is 1
    u64 window_ends_ = 0;                // when it is over
    std::unique_ptr<BlockLives> lives_;
    std::unique_ptr<Running> running_;  // for lives_
    Owners owners_;
    Phases phases_;
    BlockUses uses_;
    Inefficiency inefficiency_;
};

}  // namespace memscope::kernel
