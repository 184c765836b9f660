// The live blocks of one pool, by address: an open-addressing hash table with the blocks stored in the slots.
//
// One memory event costs one probe here, so this table decides the tracker's speed. Linear probing keeps a probe
// within one or two cache lines, and erasing shifts the following blocks back instead of leaving tombstones, so
// endless churn at the same addresses does not slow it down. It grows at 70 % and shrinks when it is told to: 56 bytes
// per slot, that is 80 to 160 bytes per live block at its fullest.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

// A handle of physical memory is no address, though it may equal one; no address of a process has the top bit.
inline constexpr u64 kHandleBit = u64{1} << 63;

struct Block {
    u64 ptr = 0;  // with kHandleBit where it is a handle
    u64 id = 0;   // number of the allocation within its process, from 1; 0 marks an empty slot
    i64 size = 0;
    u64 ts = 0;
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
static_assert(sizeof(Block) == 56);

class BlockMap {
public:
    std::size_t size() const noexcept { return count_; }

    const Block* find(u64 ptr) const noexcept {
        if (count_ == 0) return nullptr;
        for (std::size_t at = home(ptr);; at = (at + 1) & mask_) {
            const Block& slot = slots_[at];
            if (slot.id == 0) return nullptr;
            if (slot.ptr == ptr) return &slot;
        }
    }

    Block* find(u64 ptr) noexcept { return const_cast<Block*>(std::as_const(*this).find(ptr)); }

    // Asks the processor for the slot of an address ahead of its use.
    void prefetch(u64 ptr) const noexcept {
        if (count_ != 0) __builtin_prefetch(&slots_[home(ptr)], 1);
    }

    // The slot of an address: that of the block that lives there, or an empty one (id 0) that the caller fills at once.
    Block& claim(u64 ptr) {
        if ((count_ + 1) * 10 > slots_.size() * 7) grow();
        std::size_t at = home(ptr);
        while (slots_[at].id != 0 && slots_[at].ptr != ptr) at = (at + 1) & mask_;
        if (slots_[at].id == 0) ++count_;
        return slots_[at];
    }

    // Removes a block that find() returned. Every pointer into the table is void afterwards.
    void erase(const Block* block) noexcept {
        std::size_t hole = static_cast<std::size_t>(block - slots_.data());
        for (std::size_t at = (hole + 1) & mask_; slots_[at].id != 0; at = (at + 1) & mask_) {
            // A block may move back into the hole only if that is not before its home.
            const std::size_t from_home = (at - home(slots_[at].ptr)) & mask_;
            const std::size_t from_hole = (at - hole) & mask_;
            if (from_home >= from_hole) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        }
        slots_[hole] = Block{};
        --count_;
    }

    // Gives back the slots that what lives does not need.
    void shrink() {
        std::size_t slots = 64;
        while (count_ * 10 > slots * 7) slots *= 2;
        if (count_ == 0) {
            *this = BlockMap{};
        } else if (slots < slots_.size()) {
            rehash(slots);
        }
    }

    template <typename Visit>
    void each(Visit&& visit) const {
        for (const Block& slot : slots_)
            if (slot.id != 0) visit(slot);
    }

private:
    // Allocators hand out multiples of 16 to 512: the multiplication brings the bits that differ to the top.
    std::size_t home(u64 ptr) const noexcept {
        return static_cast<std::size_t>((ptr * 0x9E3779B97F4A7C15ull) >> shift_);
    }

    void grow() { rehash(slots_.empty() ? 64 : slots_.size() * 2); }

    void rehash(std::size_t slots) {
        const std::vector<Block> old = std::move(slots_);
        slots_ = std::vector<Block>(slots);
        mask_ = slots - 1;
        shift_ = 64 - static_cast<unsigned>(__builtin_ctzll(slots));
        for (const Block& block : old) {
            if (block.id == 0) continue;
            std::size_t at = home(block.ptr);
            while (slots_[at].id != 0) at = (at + 1) & mask_;
            slots_[at] = block;
        }
    }

    std::vector<Block> slots_;
    std::size_t mask_ = 0;
    std::size_t count_ = 0;
    unsigned shift_ = 0;
};

}  // namespace memscope::kernel
