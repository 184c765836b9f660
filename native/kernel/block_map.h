// The live blocks of one pool, by address: an index of addresses (place_index.h), and the blocks beside it.
//
// One memory event costs one probe here, so this table decides the tracker's speed. A block has a line of the cache for
// itself; the place of a block that has ended is the next one's, which is in the cache then. Nothing moves a block but
// shrinking. Memory: 16 bytes per entry and 64 per block, that is 86 to 175 bytes per live block at its fullest.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernel/large_pages.h"
#include "kernel/place_index.h"
#include "record/record.h"

namespace memscope::kernel {

// A handle of physical memory is no address, though it may equal one; no address of a process has the top bit.
inline constexpr u64 kHandleBit = u64{1} << 63;

struct alignas(64) Block {
    u64 ptr = 0;  // with kHandleBit where it is a handle
    u64 id = 0;   // number of the allocation within its process, from 1; 0: no block lives here
    i64 size = 0;
    u64 ts = 0;
    u64 attr = 0;  // the driver's flag word; of a framework's pool the stream that it was allocated for (record.h)
    u32 site = 0;
    u32 step = 0;
    u32 tid = 0;
    u32 launches = 0;  // kernels that its process had launched before it
    u32 life = 0;      // what block_lives.h knows of it beside this; of no block: the next place without one
    u8 flags = 0;
    u8 told = 0;    // bit per level that a label for its address has set (owners.h)
    u16 owner = 0;  // owner_names.h

    u64 address() const noexcept { return ptr & ~kHandleBit; }
};
static_assert(sizeof(Block) == 64);

class BlockMap {
public:
    std::size_t size() const noexcept { return index_.size(); }

    const Block* find(u64 ptr) const noexcept {
        const u32 place = index_.find(ptr);
        return place == PlaceIndex::kNone ? nullptr : &blocks_[place];
    }

    Block* find(u64 ptr) noexcept { return const_cast<Block*>(std::as_const(*this).find(ptr)); }

    // Asks the processor for the entry of an address ahead of its use, then for the block.
    [[gnu::always_inline]] void fetch_entry(u64 ptr) const noexcept { index_.fetch(ptr); }
    [[gnu::always_inline]] void fetch_block(u64 ptr) const noexcept {
        if (const Block* block = glance(ptr)) __builtin_prefetch(block, 1);
    }
    // The block, if its entry is near where it is looked for first; null also where it is not. The map must not be
    // empty, here and for the two above.
    const Block* glance(u64 ptr) const noexcept {
        const u32 place = index_.glance(ptr);
        return place != PlaceIndex::kNone ? &blocks_[place] : nullptr;
    }

    // The block that lives at an address, or the place for one (id 0) that the caller fills at once. Every pointer to a
    // block is void afterwards.
    Block& claim(u64 ptr) {
        PlaceIndex::Entry& entry = index_.claim(ptr);
        if (entry.place == PlaceIndex::kNone) {
            if (unused_ == PlaceIndex::kNone) {
                blocks_.emplace_back().life = PlaceIndex::kNone;
                unused_ = static_cast<u32>(blocks_.size() - 1);
            }
            index_.fill(entry, ptr, unused_);
            unused_ = blocks_[unused_].life;
        }
        return blocks_[entry.place];
    }

    // A block that is about to end: it and its entry, which is looked for only once. block: null, there is none.
    struct Ending {
        Block* block;
        std::size_t entry;
    };
    Ending find_ending(u64 ptr) noexcept {
        const std::size_t entry = index_.locate(ptr);
        return {entry == PlaceIndex::kNowhere ? nullptr : &blocks_[index_.place_at(entry)], entry};
    }
    // Removes it, before anything else is claimed or removed.
    void erase(Ending ending) noexcept {
        const u32 place = index_.erase_at(ending.entry);
        ending.block->id = 0;
        ending.block->life = unused_;
        unused_ = place;
    }

    // Gives back what the blocks that live do not need. Every pointer to a block is void afterwards.
    void shrink() {
        if (index_.size() == 0) {
            *this = BlockMap{};
            return;
        }
        Blocks live;
        live.reserve(index_.size());
        index_.renumber([&](u32 place) {
            live.push_back(blocks_[place]);
            return static_cast<u32>(live.size() - 1);
        });
        blocks_ = std::move(live);
        unused_ = PlaceIndex::kNone;
        index_.shrink();
    }

    template <typename Visit>
    void each(Visit&& visit) const {
        for (const Block& block : blocks_)
            if (block.id != 0) visit(block);
    }

private:
    using Blocks = std::vector<Block, LargePages<Block>>;

    PlaceIndex index_;
    Blocks blocks_;
    u32 unused_ = PlaceIndex::kNone;  // the latest place that became free; the block there says the one before, as life
};

}  // namespace memscope::kernel
