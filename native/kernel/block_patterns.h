// What is inefficient in the life of one block, by the apis (api_order.h) in which it was touched.
//
// The first three are upstream's, by its rules and in its order:
//   early_allocation     a block was freed between its allocation and the first access by another api
//   temporary_idleness   more than the threshold of apis between two accesses
//   late_deallocation    a block was allocated between its last access and its end
// The others are of DrGPUM's sort (inefficiency.h says when).
#pragma once

#include "record/record.h"

namespace memscope::kernel {

// name, bit of Life.words. Tables name a pattern by its bit.
#define MEMSCOPE_PATTERNS(X) \
    X(early_allocation, 1)   \
    X(late_deallocation, 2)  \
    X(temporary_idleness, 4) \
    X(unused_allocation, 8)  \
    X(dead_write, 16)        \
    X(redundant_allocation, 32)

enum Pattern : u8 {
#define X(name, bit) name = (bit),
    MEMSCOPE_PATTERNS(X)
#undef X
};
inline constexpr u8 kUpstreamPatterns = early_allocation | late_deallocation | temporary_idleness;
inline constexpr u8 kIdleFirst = 64;  // in words: idleness was seen before the early allocation
inline constexpr u64 kIdleThreshold = 3000;

// What a block shows: by the clock of its own stream, and of upstream's patterns also as upstream counts, in the order
// of the host over all streams and cards.
struct Shown {
    u8 words = 0, by_host = 0;
};

struct ApiLife {
    u64 malloc_api = 0;
    u64 first_api = 0;  // of the first access by another api; 0: none
    u64 last_api = 0;   // of the latest access; 0: none
    u8 words = 0;

    // last_free: the latest api that freed a block. is_over: the accesses before are known to be over. Returns the
    // patterns that this access has shown.
    u8 access(u64 api, u64 last_free, u64 threshold, bool is_over = true) noexcept {
        const u8 before = words;
        if (is_over && last_api != 0 && api > last_api && api - last_api > threshold) words |= temporary_idleness;
        if (first_api == 0 && api != malloc_api) first_api = api;
        if ((words & early_allocation) == 0 && first_api != 0 && malloc_api < last_free && last_free < first_api)
            words |= static_cast<u8>(early_allocation | ((words & temporary_idleness) != 0 ? kIdleFirst : 0));
        last_api = api;
        return static_cast<u8>(words & ~before & ~kIdleFirst);
    }
    // last_malloc: the latest api that allocated one. True: it is freed too late.
    bool free(u64 api, u64 last_malloc) noexcept {
        if (last_api == 0 || last_api >= last_malloc || last_malloc >= api) return false;
        words |= late_deallocation;
        return true;
    }
};

}  // namespace memscope::kernel
