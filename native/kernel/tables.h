// The tables that the folds of one ring hand out: one struct of columns per table, declared once.
//
// A table is a list of (type, name); the struct and the Python dict of numpy arrays are made from that list, so a
// column cannot exist in one of them only. Row i of every column belongs together.
#pragma once

#include <string>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

// A truth value stored as one byte: std::vector<bool> has no bytes that numpy could show.
enum class Bool : u8 { NO = 0, YES = 1 };

// One row per site: a call stack that allocates in one pool. The row's index is the site's id.
// live_*: now; first_* and last_step: of the site's first and latest allocation.
#define MEMSCOPE_SITE_COLUMNS(X) \
    X(u8, device_type)           \
    X(i16, device)               \
    X(u8, pool)                  \
    X(u64, stack_py)             \
    X(u64, stack_c)              \
    X(u64, allocs)               \
    X(u64, frees)                \
    X(i64, live_blocks)          \
    X(i64, live_bytes)           \
    X(u32, first_step)           \
    X(u32, last_step)            \
    X(u64, first_ts)

// The sums of sites by cell, `cells` equal ones in a row; sums.py says what they mean. Rows of one site and cell add
// up. late: what ended in the open step, which counts once that step is closed; births of the open step have rows of
// their own, which are not late.
#define MEMSCOPE_SUM_COLUMNS(X) \
    X(u32, site)                \
    X(u32, cell)                \
    X(u32, cells)               \
    X(i64, born_blocks)         \
    X(i64, born_bytes)          \
    X(i64, freed_blocks)        \
    X(i64, freed_bytes)         \
    X(i64, old_blocks)          \
    X(i64, gone_blocks)         \
    X(i64, gone_bytes)          \
    X(Bool, late)

// Deaths by site and class of age (sums.py). late: as above.
#define MEMSCOPE_AGE_COLUMNS(X) \
    X(u32, site)                \
    X(u8, age_class)            \
    X(i64, blocks)              \
    X(Bool, late)

// One row per step of every pool since its first event, the open step included (complete is
// false). Of steps in a row in which a worker did nothing only the last. *_bytes: our running sum of live bytes;
// *_reserved: the pool's own total, -1 unknown; end_unseen, end_missing: bytes of the pool's own count that are not in
// end_bytes (pool_count.h). Timestamps are the process's: a step ends where the next begins.
// steps: how many are in the row, whose last is `step`; more than one only in long runs (kMaxStepRows).
#define MEMSCOPE_STEP_COLUMNS(X) \
    X(u8, device_type)           \
    X(i16, device)               \
    X(u8, pool)                  \
    X(u32, step)                 \
    X(i64, start_bytes)          \
    X(i64, end_bytes)            \
    X(i64, peak_bytes)           \
    X(i64, min_bytes)            \
    X(i64, most_bytes)           \
    X(i64, start_reserved)       \
    X(i64, end_reserved)         \
    X(i64, peak_reserved)        \
    X(i64, end_unseen)           \
    X(i64, end_missing)          \
    X(u64, allocs)               \
    X(u64, frees)                \
    X(u64, alloc_bytes)          \
    X(u64, freed_bytes)          \
    X(u64, start_ts)             \
    X(u64, end_ts)               \
    X(Bool, complete)            \
    X(u32, steps)

// Blocks; grouped by pool, within it in the order of allocation. attr: of the driver's blocks (HAL) the flag word that
// they were asked with, else 0. launches: kernels launched before. owner: as it is now
// (MEMSCOPE_OWNER_COLUMNS). late: it has ended in the open step.
#define MEMSCOPE_LIVE_COLUMNS(X) \
    X(u8, device_type)           \
    X(i16, device)               \
    X(u8, pool)                  \
    X(u64, ptr)                  \
    X(i64, size)                 \
    X(u64, stack_py)             \
    X(u64, stack_c)              \
    X(u32, step)                 \
    X(u64, ts)                   \
    X(u32, tid)                  \
    X(u8, flags)                 \
    X(u64, allocation_id)        \
    X(u32, site)                 \
    X(u64, attr)                 \
    X(u32, launches)             \
    X(u64, owner)                \
    X(Bool, late)

// What a number may depend on: only kinds that occurred. See MEMSCOPE_ANOMALIES in anomalies.h.
#define MEMSCOPE_ANOMALY_COLUMNS(X) \
    X(std::string, kind)            \
    X(u64, count)                   \
    X(i64, bytes)

// Single numbers. step: the open one; step_stack: Python stack of whoever advanced it last, 0 unknown; boundaries,
// launches: STEP and KERNEL_LAUNCH events; sum_stride: steps per cell of the sums; window: the open one, where the sums
// are by windows of time, else 0. With events 0 the others say nothing.
#define MEMSCOPE_RING_FACTS(X) \
    X(u64, events)             \
    X(u64, allocs)             \
    X(u32, first_step)         \
    X(u32, step)               \
    X(u64, first_ts)           \
    X(u64, last_ts)            \
    X(u64, step_stack)         \
    X(u64, boundaries)         \
    X(u64, launches)           \
    X(u32, sum_stride)         \
    X(u32, window)

// When the steps after the first began.
#define MEMSCOPE_BEGIN_COLUMNS(X) \
    X(u32, step)                  \
    X(u64, ts)

// What the tracker knows about each event of one batch, in the batch's order.
//   allocation_id  MALLOC: number of the block within its process, from 1; FREE, ACCESS: the block's; else 0
//   size           FREE of a live block: the block's size; else the event's
//   live_after     MALLOC, FREE: live bytes of that device and pool after the event; else -1
//   ended_id       MALLOC of an address that was still live: the block that ended there, whose end is part of
//   ended_size     live_after, and its size; else 0
#define MEMSCOPE_ENRICH_COLUMNS(X) \
    X(u64, allocation_id)          \
    X(i64, size)                   \
    X(i64, live_after)             \
    X(u64, ended_id)               \
    X(i64, ended_size)

// One row per block life that has ended, or of all that go on. malloc_*, tid, stacks, name, attr and flags are of its
// MALLOC.
//   op, range           names of the innermost operator and range that its thread was in then; 0: none was seen
//   free_ts, free_step  of its end; 0 while alive
//   alive               it has not ended
//   free_seen           it has, by a FREE; not by a MALLOC of its address
//   segments            driver segments under it when it was allocated; several are neighbours in an expandable one
//   segment_*           the first of them: address, bytes, allocation id of the driver's block (0: not seen)
//   owner               its last one; owner_changes: labels that changed it, beyond the first at each level
//   *_access_ts         0 without accesses; reads, writes: those of a known sort; longest_idle: ns between two of them
//   inefficient         bits of the patterns that it shows (block_patterns.h)
//   inefficient_by_host  of upstream's patterns, as upstream counts: in the order of the host over all streams
//   stream              that it was allocated for, as stream_of() has it (record.h)
#define MEMSCOPE_LIFE_COLUMNS(X) \
    X(u64, allocation_id)        \
    X(u8, device_type)           \
    X(i16, device)               \
    X(u8, pool)                  \
    X(u64, ptr)                  \
    X(i64, size)                 \
    X(u64, malloc_ts)            \
    X(u64, free_ts)              \
    X(u32, malloc_step)          \
    X(u32, free_step)            \
    X(u32, tid)                  \
    X(u64, stack_py)             \
    X(u64, stack_c)              \
    X(u64, name)                 \
    X(u64, op)                   \
    X(u64, range)                \
    X(u64, attr)                 \
    X(u8, flags)                 \
    X(u32, segments)             \
    X(u64, segment_ptr)          \
    X(i64, segment_size)         \
    X(u64, segment_id)           \
    X(Bool, free_seen)           \
    X(Bool, alive)               \
    X(u64, owner)                \
    X(u32, owner_changes)        \
    X(u64, first_access_ts)      \
    X(u64, last_access_ts)       \
    X(u64, accesses)             \
    X(u64, reads)                \
    X(u64, writes)               \
    X(u64, longest_idle)         \
    X(u8, inefficient)           \
    X(u8, inefficient_by_host)   \
    X(u32, stream)

// One row per driver segment that was there at the peak of its device, or is there now.
//   segment_id, attr         of the driver's block behind it: allocation id and flag word; 0 when it was not seen
//   driver                   pool that the block behind it belongs to
//   ts, step                 when it became addressable
//   at_peak, at_end          whether it was, is there
//   peak_*, end_*            then, now: the pool whose blocks cover most of it, the bytes covered and the blocks in it,
//                            both of that pool; a block over several segments counts in each
#define MEMSCOPE_SEGMENT_COLUMNS(X) \
    X(u8, device_type)              \
    X(i16, device)                  \
    X(u64, ptr)                     \
    X(i64, size)                    \
    X(u64, segment_id)              \
    X(u64, attr)                    \
    X(u8, driver)                   \
    X(u64, ts)                      \
    X(u32, step)                    \
    X(Bool, at_peak)                \
    X(u8, peak_pool)                \
    X(i64, peak_used)               \
    X(i64, peak_blocks)             \
    X(Bool, at_end)                 \
    X(u8, end_pool)                 \
    X(i64, end_used)                \
    X(i64, end_blocks)

// Owners of blocks (owner_names.h). owner: the number by which other tables name them, the same in every ring; 0: those
// for which there was no room. The rest: string ids of its labels, 0 for none.
#define MEMSCOPE_OWNER_COLUMNS(X) \
    X(u64, owner)                 \
    X(u32, root)                  \
    X(u64, component)             \
    X(u64, process)               \
    X(u64, detail_1)              \
    X(u64, detail_2)              \
    X(u64, user_1)                \
    X(u64, user_2)                \
    X(u64, user_3)

// Whose the bytes of a pool were at the end and at the peak of each step, the open one included (pool_owners.h).
#define MEMSCOPE_OWNER_SUM_COLUMNS(X) \
    X(u8, device_type)                \
    X(i16, device)                    \
    X(u8, pool)                       \
    X(u32, step)                      \
    X(u64, owner)                     \
    X(i64, end_bytes)                 \
    X(i64, peak_bytes)

// Whose they were at the highest peak of all, which was in `step`.
#define MEMSCOPE_OWNER_PEAK_COLUMNS(X) \
    X(u8, device_type)                 \
    X(i16, device)                     \
    X(u8, pool)                        \
    X(u32, step)                       \
    X(u64, owner)                      \
    X(i64, bytes)

// The same of what an owner has from one site (owned_sites.h). owner 0: what nobody has named, and pairs for which
// there was no room; its site says nothing. Rows begin when the first block of the pool is named.
#define MEMSCOPE_OWNED_SITE_SUM_COLUMNS(X) \
    X(u8, device_type)                     \
    X(i16, device)                         \
    X(u8, pool)                            \
    X(u32, step)                           \
    X(u64, owner)                          \
    X(u32, site)                           \
    X(i64, end_bytes)                      \
    X(i64, peak_bytes)
#define MEMSCOPE_OWNED_SITE_PEAK_COLUMNS(X) \
    X(u8, device_type)                      \
    X(i16, device)                          \
    X(u8, pool)                             \
    X(u32, step)                            \
    X(u64, owner)                           \
    X(u32, site)                            \
    X(i64, bytes)

// Which peak of a pool (site_peaks.h): the highest of all, or the highest of the closed steps after the warm-up.
enum class PeakOf : u8 { ALL = 0, TYPICAL = 1 };

// The peaks of pools. peak: PeakOf; sites: under which of them the sites' rows stand, for both may be of one moment.
// Of `bytes`: fresh_bytes were allocated in that step, early_bytes in the warm-up, if the step is behind it.
#define MEMSCOPE_POOL_PEAK_COLUMNS(X) \
    X(u8, device_type)                \
    X(i16, device)                    \
    X(u8, pool)                       \
    X(u8, peak)                       \
    X(u8, sites)                      \
    X(u32, step)                      \
    X(u64, ts)                        \
    X(i64, bytes)                     \
    X(i64, fresh_bytes)               \
    X(i64, early_bytes)

// What sites held at the peaks of their pools; sites that held nothing have no row.
#define MEMSCOPE_SITE_PEAK_COLUMNS(X) \
    X(u32, site)                      \
    X(u8, peak)                       \
    X(i64, bytes)                     \
    X(i64, blocks)

// What a phase needed of a pool (phases.h). component, name: string ids, component 0 for a range; runs: that have begun
// in the process; ended: of those that this pool has seen begin, how many it has seen end, between which and their
// beginnings it came to hold kept_bytes more; step: of the peak; start_bytes: the level at the start of its run.
#define MEMSCOPE_PHASE_COLUMNS(X) \
    X(u8, device_type)            \
    X(i16, device)                \
    X(u8, pool)                   \
    X(u64, component)             \
    X(u64, name)                  \
    X(Bool, is_range)             \
    X(u64, runs)                  \
    X(u64, ended)                 \
    X(u32, step)                  \
    X(i64, start_bytes)           \
    X(i64, peak_bytes)            \
    X(i64, kept_bytes)

// Whose the bytes of its peak were. row: of the table above.
#define MEMSCOPE_PHASE_OWNER_COLUMNS(X) \
    X(u32, row)                         \
    X(u64, owner)                       \
    X(i64, bytes)

// A block that belonged to `before` belongs to `owner` from then on.
#define MEMSCOPE_OWNER_CHANGE_COLUMNS(X) \
    X(u64, allocation_id)                \
    X(u32, step)                         \
    X(u64, ts)                           \
    X(u64, before)                       \
    X(u64, owner)

// What inefficient blocks each site of a pool made, by pattern (block_patterns.h: its bit). Stacks 0, 0 also stand for
// sites for which there was no room. Each stream of a card has a pool of its own here (record.h: stream_of).
//   blocks, bytes, largest   that show the pattern, their bytes, those of the largest
//   operators                most of them between the two touches that show it
//   peak_*                   that were alive at the pool's highest peak and not needed then, for this reason; over all
//                            rows no byte stands here twice
//   shared_bytes             of a redundant block: alive then, as was the one that it could have been, in whose row it
//                            counts. partner_py: the Python stack that allocated the latest such one
//   first_step, last_step    in which the blocks were allocated
#define MEMSCOPE_INEFFICIENCY_COLUMNS(X) \
    X(u8, device_type)                   \
    X(i16, device)                       \
    X(u8, pool)                          \
    X(u32, stream)                       \
    X(u8, pattern)                       \
    X(u64, stack_py)                     \
    X(u64, stack_c)                      \
    X(u64, blocks)                       \
    X(i64, bytes)                        \
    X(i64, largest)                      \
    X(u32, operators)                    \
    X(u64, peak_blocks)                  \
    X(i64, peak_bytes)                   \
    X(i64, shared_bytes)                 \
    X(u64, partner_py)                   \
    X(u32, first_step)                   \
    X(u32, last_step)

// The highest peak of a pool, which was in `step`, and how low it could have been (pool_needs.h).
//   unneeded_bytes    the sum of peak_bytes above
//   undecided_bytes   of blocks of which nobody knows: not touched since the peak and alive, or ended without a
//   pattern;
//                     or not judged at all (inefficiency.h)
//   touched_bytes     most that one operator touched
//   floor_bytes       a lower bound of the peak with the same order of operators
#define MEMSCOPE_FLOOR_COLUMNS(X) \
    X(u8, device_type)            \
    X(i16, device)                \
    X(u8, pool)                   \
    X(u32, stream)                \
    X(u32, step)                  \
    X(i64, peak_bytes)            \
    X(i64, unneeded_bytes)        \
    X(i64, undecided_bytes)       \
    X(i64, touched_bytes)         \
    X(i64, floor_bytes)

#define MEMSCOPE_DECLARE_COLUMN(type, name) std::vector<type> name;

struct SiteTable {
    MEMSCOPE_SITE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct SumTable {
    MEMSCOPE_SUM_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct AgeTable {
    MEMSCOPE_AGE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct StepTable {
    MEMSCOPE_STEP_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct LiveTable {
    MEMSCOPE_LIVE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct AnomalyTable {
    MEMSCOPE_ANOMALY_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct RingFacts {
#define X(type, name) type name = 0;
    MEMSCOPE_RING_FACTS(X)
#undef X
};
struct BeginTable {
    MEMSCOPE_BEGIN_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct EnrichTable {
    MEMSCOPE_ENRICH_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct LifeTable {
    MEMSCOPE_LIFE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct SegmentTable {
    MEMSCOPE_SEGMENT_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};

struct OwnerTable {
    MEMSCOPE_OWNER_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct OwnerSumTable {
    MEMSCOPE_OWNER_SUM_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct OwnerPeakTable {
    MEMSCOPE_OWNER_PEAK_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct OwnedSiteSumTable {
    MEMSCOPE_OWNED_SITE_SUM_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct OwnedSitePeakTable {
    MEMSCOPE_OWNED_SITE_PEAK_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct OwnerChangeTable {
    MEMSCOPE_OWNER_CHANGE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct PhaseTable {
    MEMSCOPE_PHASE_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct PhaseOwnerTable {
    MEMSCOPE_PHASE_OWNER_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct PoolPeakTable {
    MEMSCOPE_POOL_PEAK_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct SitePeakTable {
    MEMSCOPE_SITE_PEAK_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct InefficiencyTable {
    MEMSCOPE_INEFFICIENCY_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};
struct FloorTable {
    MEMSCOPE_FLOOR_COLUMNS(MEMSCOPE_DECLARE_COLUMN)
};

#undef MEMSCOPE_DECLARE_COLUMN

}  // namespace memscope::kernel
