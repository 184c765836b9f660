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
// Each stream of a card is judged by itself (stream_needs.h), by its own clock. A block for which nobody has told a
// stream in a pool that has some, and one of further streams than kMaxStreams (counted: Anomaly::LEFT_OUT_STREAM), has
// upstream's words by the order of the host, and no others. Between streams the order of the host
// is all that is known, and no more than this: nothing runs before it is launched. So nothing is said of the time
// behind an access until what other streams do to the block is over for its own (elsewhere_uses.h); and what ends such
// a time may be launched anywhere.
//
// Nothing is judged before the first operator or access, nor a block that was there before it, or before events that
// are missing. Memory: some 150 bytes for each live block from then on, and what pool_needs.h says.
#pragma once

#include <memory>

#include "kernel/anomalies.h"
#include "kernel/api_order.h"
#include "kernel/block_map.h"
#include "kernel/event_columns.h"
#include "kernel/number_map.h"
#include "kernel/stream_needs.h"

namespace memscope::kernel {

class Inefficiency {
public:
    // OP_START and OP_END. aux: with the stream.
    void start(u32 tid, u32 aux, u8 device_type, i16 device) {
        is_active_ = true;
        order_.start(tid, aux & kLowBits, {device_type, device, stream_of(aux)});
    }
    void end(u32 tid, u32 aux) { order_.end(tid, aux & kLowBits); }
    // GAP, and recording that goes on or off: nothing is known to run, and the live blocks are lost. It costs what was
    // judged since the last time: a ring that overflows has many gaps, and may have a million blocks.
    void forget();

    // A block that begins, of a stream that is told or not. before: the levels of its pool without it.
    void begin(const Block& block, PoolKey pool, u32 stream, StreamNeeds& streams, const PoolPeaks& before,
               Anomalies& anomalies) {
        if (!is_active_ && streams.is_whole() && streams.is_of_first(stream)) return;
        begin_in(block, pool, stream, streams, before, anomalies);
    }
    void access(const Block& block, PoolKey pool, const EventColumns& events, std::size_t row);
    // It ends, by a FREE of thread tid. Returns its patterns.
    Shown end(const Block& block, PoolKey pool, u32 tid) { return is_active_ ? judge_end(block, pool, tid) : Shown{}; }
    // It has ended, nobody knows when.
    Shown lose(const Block& block);

    Shown shown(const Block& block) const noexcept {
        const JudgedBlock* const known = blocks_.find(block.id);
        return known == nullptr ? Shown{} : shown_by(*known);
    }
    // What is known of a pool now.
    void append(InefficiencyTable& table, FloorTable& floors, PoolKey pool, const StreamNeeds& streams,
                const PoolPeaks& peaks, const BlockMap& blocks, const Sites& sites) const;
    void shrink() { blocks_.shrink(); }

    // That it was allocated for.
    static u32 stream_of_block(const Block& block, PoolKey pool) noexcept {
        return pool.has_streams() ? static_cast<u32>(block.attr) : kNoStream;
    }

private:
    void begin_in(const Block& block, PoolKey pool, u32 stream, StreamNeeds& streams, const PoolPeaks& before,
                  Anomalies& anomalies);
    // one: of its stream's blocks; null: by the order of the host alone.
    void judge(const Block& block, PoolKey pool, ApiOrder::Clock clock, StreamNeeds::OfStream* one);
    Shown judge_end(const Block& block, PoolKey pool, u32 tid);
    void forget_blocks_of(const PoolNeeds* needs) noexcept;
    // Of a block that may be of no stream, or of one without a clock: then it is the host's.
    ApiOrder::Clock clock_of(const JudgedBlock* known, const Block& block, PoolKey pool);
    static bool has_stream(ApiOrder::Clock clock) noexcept { return clock >= kFamilies; }
    static Shown shown_by(const JudgedBlock& block) noexcept { return {block.life.words, block.by_host.words}; }
    u8 idle_pattern(const JudgedBlock& block, u64 now) const noexcept;
    static bool is_whole(const JudgedBlock& block, const EventColumns& events, std::size_t row) noexcept;

    ApiOrder order_;
    NumberMap<JudgedBlock> blocks_;  // by number of the block
    std::unique_ptr<NeedMemory> memory_ = std::make_unique<NeedMemory>();
    bool is_active_ = false;
};

}  // namespace memscope::kernel
