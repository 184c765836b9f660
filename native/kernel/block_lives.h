// Follows blocks from their MALLOC to their end, one row per life, with the driver segment they were cut from.
//
// In: every beginning and end of a block, by the block tracker, and the mappings. Out: the rows of the lives that have
// ended since they were last asked for, and of those that go on; the segments. Sites are folded when there are too
// many, so a life keeps stacks of its own. Memory: 70 to 150 bytes per live block beside the tracker's (block_map.h);
// some 420 bytes per live segment, of which mappings make kMaxSegments at most; and the rows that nobody has asked for
// yet.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernel/block_map.h"
#include "kernel/block_patterns.h"
#include "kernel/block_uses.h"
#include "kernel/event_columns.h"
#include "kernel/life_rows.h"
#include "kernel/pool_key.h"
#include "kernel/running.h"
#include "kernel/segment_map.h"
#include "kernel/tables.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxSegments = 1u << 17;

// Whose a block is and how it was used, as other folds know it.
struct Belongs {
    u64 owner = 0;
    u32 changes = 0;
    const Use* use = nullptr;  // null: it was never accessed
    Shown inefficient;
};

class BlockLives {
public:
    // The MALLOC of a block, whose `life` is set by this; running: in its thread.
    void begin(Block& block, PoolKey pool, const EventColumns& events, std::size_t row, Running::Names running);
    // Its end. seen: by a FREE, not by a MALLOC of its address.
    void end(const Block& block, PoolKey pool, u64 ts, u32 step, bool seen, const Belongs& belongs);

    // MAP and UNMAP events of the open step `step`; allocs: number of the latest block.
    void map(const EventColumns& events, std::size_t row, u32 step, u64 allocs);
    void unmap(u64 ptr, i16 device);

    [[gnu::always_inline]] void fetch(const Block& block) const noexcept {
        const char* const life = reinterpret_cast<const char*>(&lives_[block.life]);
        __builtin_prefetch(life, 1);
        __builtin_prefetch(life + sizeof(Life) - 1, 1);
    }

    // The lives that have ended since this was last asked for, in the order of their ends.
    LifeTable take_ended();
    // Gives back the memory that was kept for more to come.
    void shrink();

    // How many those are.
    std::size_t ended() const noexcept { return ended_.ptr.size() + latest_->size(); }
    // A block that lives on.
    void append(LifeTable& table, LifeRows& rows, const Block& block, PoolKey pool, const Belongs& belongs) const;
    SegmentTable segments() const;

private:
    // What is known of a life beside its Block.
    struct Life {
        u64 stack_py = 0, stack_c = 0, name = 0;
        Running::Names running;
        Place place;
    };
    static_assert(sizeof(Life) == 72);
    struct Handle {
        u64 id, attr;
        u8 driver;
    };

    static u32 space_key(u8 device_type, i16 device) noexcept;
    static Span span_of(const Block& block, PoolKey pool) noexcept;
    // Where a block from before recording lies: its segment may have been told after it; one that has ended since is
    // known from the beginning.
    static Place look_again(const SegmentMap& space, const Life& life, const Block& block, PoolKey pool) noexcept;
    static bool is_told_late(const Block& block, PoolKey pool) noexcept;
    std::size_t segment_count() const noexcept;
    void enter(Life& life, const Block& block, PoolKey pool);
    // When, and whether it was seen; of a life that goes on nothing.
    struct End {
        u64 ts = 0;
        u32 step = 0;
        bool is_seen = false, is_alive = true;
    };
    static void append(LifeTable& table, LifeRows& rows, const Life& life, const Block& block, PoolKey pool,
                       const Place& place, const Belongs& belongs, const End& end);
    SegmentMap& space_of(PoolKey pool);

    std::vector<Life> lives_;
    std::vector<u32> unused_;           // of them, the latest last
    std::map<u32, SegmentMap> spaces_;  // by device type and device
    u32 latest_key_ = ~0u;              // nearly always the next one's too
    SegmentMap* latest_space_ = nullptr;
    std::unordered_map<u64, Handle> handles_;
    std::unique_ptr<LifeRows> latest_ = std::make_unique<LifeRows>();
    LifeTable ended_;  // those before the latest
};

}  // namespace memscope::kernel
