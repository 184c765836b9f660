// Which blocks of one ring are inefficient: allocated too early, freed too late, idle, unused, written in vain, or made
// though one of their size was dead.
//
// In: the blocks and their accesses, by the block tracker, and the beginnings and ends of operators. Out: the patterns
// of each block, at its end or now; by site the sums of pool_needs.h. What api_order.h, block_patterns.h and
// pool_needs.h say holds here; of the patterns that are not upstream's:
//
//   unused      no operator has accessed it from its allocation to its end, though others were seen in between, and it
//               was not made by one that was given tensors: what such a one keeps beside its results (the workspace of
//               a library) it may use itself
//   dead write  its content was never read; or it was written as a whole by an operator that reads nothing of it
//               (overwriting.h), where another had written it and nobody had read that
//   redundant   when it was allocated, a block of its size had been accessed for the last time and was not freed. Known
//               when that one ends
//
// Nothing is judged before the first operator or access, nor a block that was there before it, or before events that
// are missing. Memory: some 150 bytes for each live block from then on, and what pool_needs.h says.
#pragma once

#include <unordered_map>

#include "kernel/api_order.h"
#include "kernel/block_map.h"
#include "kernel/event_columns.h"
#include "kernel/pool_needs.h"

namespace memscope::kernel {

class Inefficiency {
public:
    // OP_START and OP_END.
    void start(u32 tid, u32 framework) {
        is_active_ = true;
        order_.start(tid, framework);
    }
    void end(u32 tid, u32 framework) { order_.end(tid, framework); }
    // GAP, and recording that goes on or off: nothing is known to run, and the live blocks are lost. It costs what was
    // judged since the last time: a ring that overflows has many gaps, and may have a million blocks.
    void forget();

    // A block that begins. level: of its pool, with it.
    void begin(const Block& block, PoolKey pool, PoolNeeds& needs, i64 level) {
        if (is_active_)
            judge(block, pool, needs, level);
        else
            needs.note_level(level);
    }
    void access(const Block& block, PoolKey pool, PoolNeeds& needs, const EventColumns& events, std::size_t row);
    // It ends, by a FREE of thread tid. Returns its patterns.
    u8 end(const Block& block, PoolKey pool, PoolNeeds& needs, u32 tid) {
        return is_active_ ? judge_end(block, pool, needs, tid) : u8{0};
    }
    // It has ended, nobody knows when.
    u8 lose(const Block& block, PoolNeeds& needs);

    u8 words(const Block& block) const noexcept {
        if (blocks_.empty()) return 0;
        const auto known = blocks_.find(block.id);
        return known == blocks_.end() ? 0 : known->second.life.words;
    }
    // What is known of a pool now.
    void append(InefficiencyTable& table, FloorTable& floors, PoolKey pool, const PoolNeeds& needs,
                const BlockMap& blocks, const Sites& sites) const;

private:
    void judge(const Block& block, PoolKey pool, PoolNeeds& needs, i64 level);
    u8 judge_end(const Block& block, PoolKey pool, PoolNeeds& needs, u32 tid);
    u8 idle_pattern(const JudgedBlock& block, u64 now) const noexcept;
    static bool is_whole(const JudgedBlock& block, const EventColumns& events, std::size_t row) noexcept;

    ApiOrder order_;
    std::unordered_map<u64, JudgedBlock> blocks_;  // by number of the block
    bool is_active_ = false;
};

}  // namespace memscope::kernel
