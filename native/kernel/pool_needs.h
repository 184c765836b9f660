// What of one pool's highest peak nobody needed then, and what inefficient blocks each of its sites made.
//
//   needed  a block is needed by the api that allocates it, by each that accesses it, and in between unless the time
//           between is one of: from an allocation that computes nothing (its operator was given no tensors) to the
//           first access by another api (early), from the last access to the end (late), longer than the threshold
//           between two accesses (idle), all of a life without access (unused), from a write that nobody reads to what
//           overwrites it or ends the block (dead write).
//   peak    the moment behind the allocation that made the highest level, in the latest api that had begun by then.
//   Such a time counts at the peak when the peak
//           lies in it. Of a block the times do not overlap, and have one pattern each: no byte counts twice.
//   late    only the end of such a time tells what it was. A higher peak makes all of it void, since what had ended
//           before it does not hold it.
//   floor   what was needed at the peak must be there at that moment whatever else is done, if operators keep their
//   order
//           and their allocations (but for the early ones), and what is needed is not moved away; so must, at any time,
//           what one operator touches. The larger of the two is a lower bound of every peak that this order allows.
//
// Memory: some 100 bytes for each of kMaxNeedRows rows (site and pattern), and what same_size.h says: both of all pools
// and streams of a ring (NeedMemory).
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/api_order.h"
#include "kernel/block_patterns.h"
#include "kernel/elsewhere_uses.h"
#include "kernel/pool_key.h"
#include "kernel/same_size.h"
#include "kernel/sites.h"
#include "kernel/tables.h"
#include "kernel/wrapping.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxNeedRows = 1u << 16;
inline constexpr u32 kNoSite = ~u32{0};  // of rows for which there was no room

class PoolNeeds;

// What the needs of all pools and streams of a ring have together.
struct NeedMemory {
    SameSize births;
    std::size_t rows = 0;
    u32 parts = 0;  // that have a number in births
};

// A live block that is judged.
struct JudgedBlock {
    PoolNeeds* needs =
        nullptr;  // of its pool, or its stream's part of it; null: it is judged by the host's order alone
    u64 id = 0;
    i64 size = 0;
    u32 site = 0, step = 0;
    u32 clock = 0;  // of api_order.h
    ElsewhereUses elsewhere;
    ApiLife by_host;  // by the clock of its family, whoever uses it
    ApiLife life;
    u64 touched = 0;          // the latest api that needed it
    u32 operators = 0;        // that had begun by then
    bool is_made = false;     // by an operator that was given tensors: it has a content from its beginning
    bool is_read = false;     // by anybody, ever
    bool is_written = false;  // and since then not read
};

class PoolNeeds {
public:
    struct Row {
        u64 blocks = 0, peak_blocks = 0;
        i64 bytes = 0, largest = 0, peak_bytes = 0, shared_bytes = 0;
        u32 operators = 0, first_step = ~u32{0}, last_step = 0, partner = kNoSite;
    };
    using Rows = std::unordered_map<u64, Row>;

    // highest: level of the pool until now, of whose blocks none was judged. shared: outlives this.
    PoolNeeds(NeedMemory& shared, i64 highest)
        : highest_(highest), unjudged_at_peak_(highest), shared_(&shared), part_(++shared.parts) {}

    // The block has begun. level: of the pool with it; latest: the latest api that has begun.
    void begin(const JudgedBlock& block, i64 level, u64 latest);
    // The same of one that is not judged. latest: 0 while none is.
    void note_level(i64 level, u64 latest, u64 id, u32 step) noexcept {
        if (level > highest_) rise(level, latest, id, step);
    }
    // An api needs it: what lies between the last one and this. pattern: of that time, 0 when it needed the block.
    void touch(JudgedBlock& block, ApiOrder::Moment moment, u8 pattern);
    // It ends. pattern: of the time since the last touch, 0 when nobody knows; operators: that have begun in it.
    void end(const JudgedBlock& block, u8 pattern, u32 operators);
    // It is alive, and not judged any more; or has ended, nobody knows when.
    void leave(const JudgedBlock& block) noexcept {
        if (holds_peak(block, block.touched, kNever)) unjudged_at_peak_ = plus(unjudged_at_peak_, block.size);
        release(block);
    }
    // A block shows a pattern. operators: between two touches, where that is what it shows.
    void show(const JudgedBlock& block, u8 pattern, u32 operators);
    // The allocation that could have had a block that ends in `api`, of which that is told; 0: none. is_dead: nobody
    // needed it behind its last touch.
    u64 find_reuse(const JudgedBlock& block, u64 api, bool is_dead);

    // The blocks that were judged so far are so no more (each has left), and further ones have the numbers of another
    // clock: when the peak was is not known.
    void change_clock() noexcept;

    // Of a block that lives on: what it is if nobody touches it any more, 0 when it is too early to tell. operators:
    // that have begun by now.
    void foresee(Rows& rows, i64& undecided, const JudgedBlock& block, u32 operators, u8 pattern) const;
    const Rows& rows() const noexcept { return rows_; }
    void append(InefficiencyTable& table, PoolKey pool, u32 stream, const Rows& rows, const Sites& sites) const;
    void append(FloorTable& table, PoolKey pool, u32 stream, const Rows& rows, i64 undecided) const;

private:
    static constexpr u64 kNever = ~u64{0};  // the api that needs a block which nobody needs any more
    static u64 key(u32 site, u8 pattern) noexcept { return u64{site} << 8 | pattern; }
    // Where there is room: else that of the sites that have none.
    static u64 key_in(const Rows& rows, std::size_t more, u32 site, u8 pattern) noexcept;
    // Its row, and the row's key.
    std::pair<const u64, Row>& row_of(u32 site, u8 pattern);
    // Of a row that is about to have bytes at the peak.
    void list_at_peak(const std::pair<const u64, Row>& row);
    void rise(i64 level, u64 api, u64 id, u32 step) noexcept;
    // Whether the block was there at the peak, and the peak lies between two apis.
    bool holds_peak(const JudgedBlock& block, u64 from, u64 to) const noexcept {
        return block.id <= peak_id_ && from < peak_api_ && peak_api_ < to;
    }
    void count_at_peak(const JudgedBlock& block, u8 pattern, u32 operators);
    void need(const JudgedBlock& block, u64 api);
    void release(const JudgedBlock& block) noexcept;

    Rows rows_;
    std::vector<u64> at_peak_;  // keys of rows with bytes at the peak
    i64 highest_, judged_ = 0;  // bytes: of the peak; of the blocks that are judged
    i64 unjudged_at_peak_;      // of blocks that were there then, and will never be known
    u64 peak_api_ = 0;          // 0: the peak was before anything was judged
    u64 peak_id_ = 0;           // number of the latest block then
    u32 peak_step_ = 0;
    u64 operator_api_ = 0;
    i64 operator_bytes_ = 0, most_touched_ = 0;
    NeedMemory* shared_;
    u32 part_;
};

}  // namespace memscope::kernel
