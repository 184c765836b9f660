// The live blocks of one pool, by address: an open-addressing hash table of addresses, and the blocks beside it.
//
// One memory event costs one probe here, so this table decides the tracker's speed. Four entries share a line of the
// cache, so that linear probing reads one or two, and a block has a line for itself; the place of a block that has
// ended is the next one's, which is in the cache then. Erasing shifts the following entries back instead of leaving
// tombstones, so endless churn at the same addresses does not slow it down, and moves no block. It grows at 70 % and
// shrinks when it is told to: 16 bytes per entry and 68 per block, that is 90 to 185 bytes per live block at its
// fullest. Only growing and shrinking allocate.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernel/large_pages.h"
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
    u32 life = 0;      // what block_lives.h knows of it beside this
    u8 flags = 0;
    u8 told = 0;    // bit per level that a label for its address has set (owners.h)
    u16 owner = 0;  // owner_names.h

    u64 address() const noexcept { return ptr & ~kHandleBit; }
};
static_assert(sizeof(Block) == 64);

class BlockMap {
public:
    std::size_t size() const noexcept { return count_; }

    const Block* find(u64 ptr) const noexcept {
        if (count_ == 0) return nullptr;
        for (std::size_t at = home(ptr);; at = (at + 1) & mask_) {
            const Entry& entry = entries_[at];
            if (entry.place == kNone) return nullptr;
            if (entry.ptr == ptr) return &blocks_[entry.place];
        }
    }

    Block* find(u64 ptr) noexcept { return const_cast<Block*>(std::as_const(*this).find(ptr)); }

    // Asks the processor for the entry of an address ahead of its use, then for the block.
    [[gnu::always_inline]] void fetch_entry(u64 ptr) const noexcept { __builtin_prefetch(&entries_[home(ptr)], 1); }
    [[gnu::always_inline]] void fetch_block(u64 ptr) const noexcept {
        if (const Block* block = glance(ptr)) __builtin_prefetch(block, 1);
    }
    // The block, if its entry stands where it is looked for first; null also where it stands elsewhere. The map must
    // not be empty, here and for the two above.
    const Block* glance(u64 ptr) const noexcept {
        const Entry& entry = entries_[home(ptr)];
        return entry.ptr == ptr && entry.place != kNone ? &blocks_[entry.place] : nullptr;
    }

    // The block that lives at an address, or the place for one (id 0) that the caller fills at once. Every pointer to a
    // block is void afterwards.
    Block& claim(u64 ptr) {
        if ((count_ + 1) * 10 > entries_.size() * 7) rehash(entries_.empty() ? 64 : entries_.size() * 2);
        std::size_t at = home(ptr);
        while (entries_[at].place != kNone && entries_[at].ptr != ptr) at = (at + 1) & mask_;
        Entry& entry = entries_[at];
        if (entry.place == kNone) {
            if (unused_.empty()) {
                blocks_.emplace_back();
                unused_.reserve(blocks_.capacity());  // erase() must not allocate
                unused_.push_back(static_cast<u32>(blocks_.size() - 1));
            }
            entry = {ptr, unused_.back()};
            unused_.pop_back();
            ++count_;
        }
        return blocks_[entry.place];
    }

    // Removes a block that find() returned.
    void erase(Block* block) noexcept {
        std::size_t hole = home(block->ptr);
        while (entries_[hole].ptr != block->ptr || entries_[hole].place == kNone) hole = (hole + 1) & mask_;
        unused_.push_back(entries_[hole].place);
        block->id = 0;
        for (std::size_t at = (hole + 1) & mask_; entries_[at].place != kNone; at = (at + 1) & mask_) {
            // An entry may move back into the hole only if that is not before its home.
            const std::size_t from_home = (at - home(entries_[at].ptr)) & mask_;
            const std::size_t from_hole = (at - hole) & mask_;
            if (from_home >= from_hole) {
                entries_[hole] = entries_[at];
                hole = at;
            }
        }
        entries_[hole].place = kNone;
        --count_;
    }

    // Gives back what the blocks that live do not need. Every pointer to a block is void afterwards.
    void shrink() {
        std::size_t entries = 64;
        while (count_ * 10 > entries * 7) entries *= 2;
        if (count_ == 0) {
            *this = BlockMap{};
            return;
        }
        Blocks live;
        live.reserve(count_);
        std::vector<u32> unused;
        unused.reserve(live.capacity());
        for (Entry& entry : entries_) {
            if (entry.place == kNone) continue;
            live.push_back(blocks_[entry.place]);
            entry.place = static_cast<u32>(live.size() - 1);
        }
        blocks_ = std::move(live);
        unused_ = std::move(unused);
        if (entries < entries_.size()) rehash(entries);
    }

    template <typename Visit>
    void each(Visit&& visit) const {
        for (const Block& block : blocks_)
            if (block.id != 0) visit(block);
    }

private:
    static constexpr u32 kNone = ~u32{0};
    struct Entry {
        u64 ptr = 0;
        u32 place = kNone;  // in blocks_
    };
    static_assert(sizeof(Entry) == 16);
    using Entries = std::vector<Entry, LargePages<Entry>>;
    using Blocks = std::vector<Block, LargePages<Block>>;

    // Allocators hand out multiples of 16 to 512: the multiplication brings the bits that differ to the top.
    std::size_t home(u64 ptr) const noexcept {
        return static_cast<std::size_t>((ptr * 0x9E3779B97F4A7C15ull) >> shift_);
    }

    void rehash(std::size_t entries) {
        Entries grown(entries);  // before anything changes: memory may end
        const Entries old = std::exchange(entries_, std::move(grown));
        mask_ = entries - 1;
        shift_ = 64 - static_cast<unsigned>(__builtin_ctzll(entries));
        for (const Entry& entry : old) {
            if (entry.place == kNone) continue;
            std::size_t at = home(entry.ptr);
            while (entries_[at].place != kNone) at = (at + 1) & mask_;
            entries_[at] = entry;
        }
    }

    Entries entries_;
    Blocks blocks_;
    std::vector<u32> unused_;  // places, the latest last
    std::size_t mask_ = 0;
    std::size_t count_ = 0;
    unsigned shift_ = 0;
};

}  // namespace memscope::kernel
