// Pairs the MALLOC and FREE events of many processes and keeps what an analysis needs of them, in one pass.
//
// In: batches of event columns, one process at a time, in the order of its ring. Out: the tables of tables.h, at
// any time. Nothing here knows files or Python; module/kernel.cpp binds it.
//
//   key     a block is (process, device type, device, pool, address). The same address in another pool is another
//           block: the driver's segment and the framework's first block in it start at the same place. So is a
//           handle of physical memory that happens to equal an address.
//   site    (process, device type, device, pool, Python stack, native stack): who allocates.
//   step    an event carries the number of step boundaries its rank had seen. The first event of a process with a
//           greater number closes the current step and all in between. An event with a smaller number comes from a
//           thread that was late; it counts to the current step, so that a closed step never changes.
//   worker  a process with a parent that makes no STEP itself hears of steps only when it does something: those in
//           which it did nothing make one row together, for the last of them. A hundred idle workers cost nothing.
//   window  a process without any step (a server, a script) is cut into windows of time, kWindowNs each, for its sums;
//           they are dropped when its first step ends.
//   range   a step whose source is an mstx range ends with it (RANGE_END with aux 1), not only where the next begins:
//           what lies between two ranges counts to the next. Ranges within the steps of another source end nothing.
//   shadow  a block from before recording began comes when recording comes on, with its true time: it is alive from
//           there on, counts as an allocation of that step, and says nothing about when a step began.
//
// Memory. Live blocks: see block_map.h. Sites: about 250 bytes each, at most max_sites; further stacks are folded into
// a site without a stack (anomaly folded_site). Steps: 16 bytes for each of kMaxBegins at most, and 120 for each of
// kMaxStepRows of a pool, of which there are kMaxPools at most. Sums: see site_sums.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "kernel/block_map.h"
#include "kernel/site_sums.h"
#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

// Columns of a batch that the tracker reads; those in the second list may be missing, and are 0 then: without `aux` no
// range ends a step, without `attr` the driver's flag words are not known. type, name
#define MEMSCOPE_TRACKER_COLUMNS(X) \
    X(u8, kind)                     \
    X(u64, ts)                      \
    X(u64, ptr)                     \
    X(i64, size)                    \
    X(i64, total)                   \
    X(u64, stack_py)                \
    X(u64, stack_c)                 \
    X(u32, tid)                     \
    X(u32, step)                    \
    X(i16, device)                  \
    X(u8, device_type)              \
    X(u8, pool)                     \
    X(u8, flags)
#define MEMSCOPE_TRACKER_MORE_COLUMNS(X) \
    X(u64, attr)                         \
    X(u32, aux)

// What anomalies() counts. name, text, meaning with the meaning of its bytes
#define MEMSCOPE_ANOMALIES(X)                                                                                    \
    X(DOUBLE_MALLOC, "double_malloc",                                                                            \
      "MALLOC of a live address; the old block ends (no fault of a workspace) [its size]")                       \
    X(UNKNOWN_FREE, "unknown_free", "FREE of an address that is not live [the event's size]")                    \
    X(INHERITED_FREE, "inherited_free", "the same in a process with a parent: the parent's block, most likely")  \
    X(OTHER_THREAD_FREE, "other_thread_free", "FREE by another thread than the MALLOC; no fault [its size]")     \
    X(SIZE_MISMATCH, "size_mismatch", "FREE and MALLOC give different sizes; MALLOC's counts [the difference]")  \
    X(BAD_SIZE, "bad_size", "MALLOC of a negative or impossible size, counted with size 0 [0]")                  \
    X(LATE_STEP, "late_step", "MALLOC or FREE of a step before the current one, counted to the current one [0]") \
    X(STEP_JUMP, "step_jump", "steps without any event that got no row because they are too many [0]")           \
    X(FOLDED_SITE, "folded_site", "MALLOC whose stacks were dropped because there are too many [its size]")      \
    X(LEFT_OUT_POOL, "left_out_pool", "MALLOC or FREE of a pool that is left out because there are too many [0]")

#define X(name, ...) name,
enum class Anomaly : u8 { MEMSCOPE_ANOMALIES(X) COUNT };
#undef X
inline constexpr std::size_t kAnomalies = static_cast<std::size_t>(Anomaly::COUNT);

// Larger than the address space of any process we watch: a size beyond is damage, not a block.
inline constexpr i64 kMaxBlockBytes = i64{1} << 47;
// A greater number of a step is damage and counts as this one. Twice it, and the step after it, are numbers of 32 bits.
inline constexpr u32 kMaxStep = (1u << 31) - 2;
// Pools on devices, of one process.
inline constexpr std::size_t kMaxPools = 128;
// Steps without any event that still get a row each when a process skips them; and all rows of such steps, over its
// pools, beyond which only the last of the steps that are skipped gets one.
inline constexpr u32 kMaxSilentSteps = 1u << 13;
inline constexpr u64 kMaxSilentRows = 1u << 20;
inline constexpr u64 kWindowNs = 1'000'000'000;
// Rows of steps of one pool; beyond, neighbours become one. And steps whose begin is known of one process.
inline constexpr std::size_t kMaxStepRows = 1u << 14;
inline constexpr std::size_t kMaxBegins = 1u << 16;

// One column of a batch. The bytes come from messages and files, so they need not be aligned.
template <typename T>
class Column {
public:
    Column() = default;
    // width: bytes from one value to the next, 0 where one holds for all rows.
    explicit Column(const void* bytes, std::size_t width = sizeof(T)) noexcept
        : bytes_(static_cast<const unsigned char*>(bytes)), width_(width) {}
    explicit operator bool() const noexcept { return bytes_ != nullptr; }
    T operator[](std::size_t row) const noexcept {
        T value;
        std::memcpy(&value, bytes_ + row * width_, sizeof(T));
        return value;
    }

private:
    const unsigned char* bytes_ = nullptr;
    std::size_t width_ = 0;
};

struct EventColumns {
    std::size_t n = 0;
#define X(type, name) Column<type> name;
    MEMSCOPE_TRACKER_COLUMNS(X)
    MEMSCOPE_TRACKER_MORE_COLUMNS(X)
#undef X
};

class BlockTracker {
public:
    // max_runs: of the sums of each process (site_sums.h); 0: they are not kept.
    explicit BlockTracker(std::size_t max_sites, std::size_t max_runs = 0);

    // Comes before feed(). parent: the process that forked or started it, -1 none. A second call changes the parent.
    void add_process(u32 process, i64 parent);
    bool has_process(u32 process) const { return process_index_.count(process) != 0; }

    // The next events of `process` (which was added), in ring order. enriched: null, or gets n rows.
    void feed(u32 process, const EventColumns& events, EnrichTable* enriched);

    // The open step of the process that was added first; 0 before its first event.
    u32 step() const noexcept { return processes_.empty() ? 0 : processes_.front().step; }

    // Steps per cell of the sums of the process that was added first.
    u32 sum_stride() const noexcept;

    SiteTable sites() const;
    StepTable steps() const;
    // Every block alive now.
    LiveTable live() const;
    // The same, and blocks of closed steps that have ended in the open one.
    LiveTable held() const;
    AnomalyTable anomalies() const;
    ProcessTable processes() const;
    BeginTable begins() const;
    // By windows of time where a process has made no step, else by steps.
    SumTable sums() const;
    AgeTable ages() const;

private:
    static constexpr u32 kNone = ~u32{0};

    struct Site {
        u32 pool = 0;  // index into pools_
        u64 stack_py = 0, stack_c = 0;
        u64 allocs = 0, alloc_bytes = 0, frees = 0, freed_bytes = 0;
        i64 live_bytes = 0, peak_bytes = 0;
        u32 first_step = 0, last_step = 0;
        u64 first_ts = 0, last_ts = 0, order = 0;

        i64 live_blocks() const noexcept { return static_cast<i64>(allocs - frees); }
    };

    // A block of a closed step that ended in the open one.
    struct Late {
        Block block;
        u32 pool;  // index into pools_
        u64 attr;
    };

    struct StepRow {
        u32 step = 0;
        i64 start_bytes = 0, end_bytes = 0, peak_bytes = 0, min_bytes = 0, most_bytes = 0;
        i64 start_reserved = kUnknown, end_reserved = kUnknown, peak_reserved = kUnknown;
        u64 allocs = 0, frees = 0, alloc_bytes = 0, freed_bytes = 0;
        u64 start_ts = 0, end_ts = 0;

        u32 steps = 1;           // in this row, of which `step` is the last
        bool has_level = false;  // something happened in it
        void note_level() noexcept;
        void forget_levels() noexcept;
        // The next step, with nothing happened in it yet.
        StepRow next(u32 number, u64 ts) const noexcept;
    };

    // The sites of one pool by their two stacks: open addressing, only grows.
    class SiteIndex {
    public:
        u32 find(u64 stack_py, u64 stack_c) const noexcept;  // kNone: not there
        void add(u64 stack_py, u64 stack_c, u32 site);       // must not be there

    private:
        struct Slot {
            u64 stack_py = 0, stack_c = 0;
            u32 site = kNone;
        };
        // The slot that holds the two stacks, or the empty one where they belong.
        static std::size_t probe(const std::vector<Slot>& slots, u64 stack_py, u64 stack_c) noexcept;

        std::vector<Slot> slots_;
        std::size_t count_ = 0;
    };

    struct PoolState {
        u32 index = 0;    // into pools_
        u32 process = 0;  // index into processes_
        u8 device_type = 0, pool = 0;
        i16 device = 0;
        BlockMap blocks;
        SiteIndex sites;
        StepRow open;                 // the current step
        std::vector<StepRow> closed;  // the steps before
        u32 row_stride = 1;           // rows of the same cell of so many steps are one
        // The steps in which the pool fell furthest, and least, below its most: their rows stay by themselves.
        std::optional<StepRow> smallest_gap, largest_gap;
        // Addresses in order, for an ACCESS into the middle of a block. Made when the first such event is enriched:
        // keeping it costs more than all the rest, and most runs have no ACCESS.
        std::unique_ptr<std::set<u64>> ordered;
        std::unordered_map<u64, u64> words;  // of the driver's live blocks that have one: id -> flag word
    };

    struct Begin {
        u32 step;
        u64 ts;
    };

    struct Process {
        u32 id = 0;
        i64 parent = -1;
        bool started = false;
        bool clocked = false;  // an event has told the time
        u32 first_step = 0, step = 0;
        u32 told_step = 0;  // the greatest that an event carried; `step` is greater when a range ended it
        u32 range_step = 0;
        bool in_range = false;  // the newest step is an mstx range that has not ended
        u32 launches = 0;
        u64 events = 0, allocs = 0, silent_rows = 0;
        u64 first_ts = 0, last_ts = 0, step_start_ts = 0, step_stack = 0, boundaries = 0;
        std::vector<Begin> begins;  // of its steps after the first
        std::vector<u32> pools;     // indices into pools_
        // Blocks of closed steps that ended in the open one. Programs free everything after their last step, and what
        // leaked must still be seen then. Cleared when the step closes.
        std::vector<Late> late;
        std::unique_ptr<SiteSums> sums;
        std::unique_ptr<SiteSums> windows;  // while it has made no step
        u32 window = 0;                     // the open one; the first is 1
        std::array<u64, kAnomalies> anomaly_count{};
        std::array<u64, kAnomalies> anomaly_bytes{};

        // Its steps are those of the process that started it.
        bool follows() const noexcept { return parent >= 0 && boundaries == 0; }
        void count(Anomaly kind, i64 bytes = 0, u64 times = 1) noexcept;
    };

    // What one event did, as the columns of EnrichTable.
    struct Outcome {
        u64 allocation_id = 0;
        i64 size = 0;
        i64 live_after = -1;
        u64 ended_id = 0;
        i64 ended_size = 0;
    };

    static void enrich(EnrichTable& table, const Outcome& outcome);
    void on_malloc(Process& process, PoolState& pool, const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_free(Process& process, PoolState& pool, const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_access(Process& process, const EventColumns& events, std::size_t row, Outcome& outcome);
    void on_step(Process& process, const EventColumns& events, std::size_t row);
    void on_range_end(Process& process, const EventColumns& events, std::size_t row);

    PoolState* obtain_pool(Process& process, u8 device_type, i16 device, u8 pool);  // null: there are too many
    u32 obtain_site(Process& process, PoolState& pool, u64 stack_py, u64 stack_c, i64 size);
    void end_block(Process& process, PoolState& pool, const Block& block);

    void start(Process& process, u32 step, u64 ts);
    void begin_clock(Process& process, u64 ts);
    void close_steps(Process& process, u32 next, u64 ts, u32 most_silent);
    void forget_levels(Process& process) noexcept;
    static void close_row(PoolState& pool, u64 ts);
    static void thin_rows(PoolState& pool);
    static void thin_begins(Process& process);
    template <typename Table>
    static void append(const Process& process, Table& table);
    static u32 window_at(const Process& process, u64 ts) noexcept;
    void advance_window(Process& process);
    LiveTable blocks(bool with_late) const;
    void append(LiveTable& table, const PoolState& pool, const Block& block, u64 attr, bool late) const;

    const std::size_t max_sites_;
    const std::size_t max_runs_;
    std::vector<Process> processes_;
    std::unordered_map<u32, u32> process_index_;  // id -> index into processes_
    std::vector<std::unique_ptr<PoolState>> pools_;
    std::vector<Site> sites_;
};

}  // namespace memscope::kernel
