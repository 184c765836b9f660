// The driver's segments of one device that can be addressed now, and what the pools' blocks cover of each.
//
// A segment is a live block of the driver, or a range that a MAP ties to a handle of physical memory. Blocks are told
// their segment when they begin. What is known of the peak is a copy that each segment makes of itself when it changes
// for the first time after the peak, so that a new peak costs nothing, however many there are while a program grows.
//
//   peak    when the device's driver blocks were largest in sum, of equal ones when the pools' blocks were.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

// How much of a segment the blocks of each pool cover.
struct Cover {
    static constexpr std::size_t kPools = static_cast<std::size_t>(Pool::CUDA_DRIVER) + 1;
    std::array<i64, kPools> bytes{}, blocks{};

    u8 largest() const noexcept;  // the pool that covers most, NONE for none
};

struct Segment {
    u64 ptr = 0;
    i64 size = 0;
    u64 id = 0;    // allocation id of the driver's block, 0 unknown
    u64 attr = 0;  // its flag word
    u8 driver = 0;
    u64 ts = 0;
    u32 step = 0;
    u64 born = 0;         // blocks with a greater number began after it
    bool shadow = false;  // from before recording began
    Cover now, peak;
    u64 copied = 0;        // number of the peak that `peak` is of
    bool at_peak = false;  // it was there then
};

// A block of a pool, as its segments see it.
struct Span {
    u64 ptr = 0;
    i64 size = 0;
    u64 number = 0;  // allocation id: blocks of one process are numbered in their order
    u8 pool = 0;
    bool shadow = false;
};

// Where a block lies. segments 0: in none that is known.
struct Place {
    u32 segments = 0;
    u64 ptr = 0;
    i64 size = 0;
    u64 id = 0;
};

class SegmentMap {
public:
    // The addresses lead to this from now on; whatever led elsewhere there has ended unseen.
    void add(Segment segment);
    // id: only if it is that of this block of the driver; 0: whatever begins there.
    void remove(u64 ptr, u64 id);

    Place begin(const Span& block);
    void end(const Span& block);
    // Where a block from before recording is known to lie by now: such blocks and segments come in any order.
    Place find(const Span& block) const;

    std::size_t size() const noexcept { return segments_.size(); }

    // What the driver has on the device changed; comes after add() or remove() of the block.
    void driver_changed(i64 bytes);

    // Appends those alive now or at the peak, by address.
    void append(SegmentTable& table, u8 device_type, i16 device) const;

private:
    using Segments = std::map<u64, Segment>;

    Segments::iterator first_at(u64 ptr);  // the segment that holds ptr, else the next one
    void copy_peak(Segment& segment) const;
    void take_out(Segments::iterator at);
    static bool knows(const Segment& segment, const Span& block) noexcept;
    static i64 overlap(const Segment& segment, const Span& block) noexcept;
    void change(Segment& segment, const Span& block, i64 sign);
    void look_for_peak();
    void begin_peak();

    Segments segments_;
    std::vector<Segment> ended_;                      // those of the peak that are gone
    std::map<std::pair<u8, u64>, Span> from_before_;  // live shadow blocks, by pool and address
    u64 peak_ = 0;                                    // its number
    bool peak_lasts_ = false;                         // nothing has changed since it began
    i64 driver_bytes_ = 0, pool_bytes_ = 0;
    i64 peak_driver_bytes_ = 0, peak_pool_bytes_ = 0;
};

}  // namespace memscope::kernel
