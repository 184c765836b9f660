// Where something is kept, by a number of 64 bits (an address, the number of a block): an open-addressing hash table of
// places in somebody's vector.
//
// Four entries share a line of the cache, so that linear probing reads one or two. Erasing shifts the following entries
// back instead of leaving tombstones, so endless churn of the same keys does not slow it down. It grows at 70 % and
// shrinks when it is told to: 16 bytes per entry. Only growing and shrinking allocate.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernel/large_pages.h"
#include "record/record.h"

namespace memscope::kernel {

class PlaceIndex {
public:
    static constexpr u32 kNone = ~u32{0};
    struct Entry {
        u64 key = 0;
        u32 place = kNone;
    };
    static_assert(sizeof(Entry) == 16);

    std::size_t size() const noexcept { return count_; }

    // kNone: it is not there.
    u32 find(u64 key) const noexcept {
        if (count_ == 0) return kNone;
        for (std::size_t at = home(key);; at = (at + 1) & mask_) {
            const Entry& entry = entries_[at];
            if (entry.place == kNone || entry.key == key) return entry.place;
        }
    }
    // Asks the processor for the entry of a key ahead of its use. The index must not be empty, here and below.
    [[gnu::always_inline]] void fetch(u64 key) const noexcept { __builtin_prefetch(&entries_[home(key)], 1); }
    // The place, if its entry is among the first kGlances that are looked at; kNone also where it is behind these. Most
    // of them lie in the line that fetch() has asked for, and where the index is full half of the entries are not the
    // first.
    u32 glance(u64 key) const noexcept {
        std::size_t at = home(key);
        for (int looks = 0; looks < kGlances; ++looks, at = (at + 1) & mask_) {
            const Entry& entry = entries_[at];
            if (entry.place == kNone || entry.key == key) return entry.place;
        }
        return kNone;
    }

    // The entry of a key: without a place where there was none, and then fill() must follow before anything else.
    Entry& claim(u64 key) {
        if ((count_ + 1) * 10 > entries_.size() * 7) rehash(entries_.empty() ? 64 : entries_.size() * 2);
        std::size_t at = home(key);
        while (entries_[at].place != kNone && entries_[at].key != key) at = (at + 1) & mask_;
        return entries_[at];
    }
    void fill(Entry& entry, u64 key, u32 place) noexcept {
        entry = {key, place};
        ++count_;
    }

    // Where the entry of a key stands until another is claimed or erased; kNowhere: it is not there.
    static constexpr std::size_t kNowhere = ~std::size_t{0};
    std::size_t locate(u64 key) const noexcept {
        if (count_ == 0) return kNowhere;
        for (std::size_t at = home(key);; at = (at + 1) & mask_) {
            if (entries_[at].place == kNone) return kNowhere;
            if (entries_[at].key == key) return at;
        }
    }
    u32 place_at(std::size_t at) const noexcept { return entries_[at].place; }

    // Of the entry that stands there. Returns its place.
    u32 erase_at(std::size_t hole) noexcept {
        const u32 place = entries_[hole].place;
        for (std::size_t at = (hole + 1) & mask_; entries_[at].place != kNone; at = (at + 1) & mask_) {
            // An entry may move back into the hole only if that is not before its home.
            const std::size_t from_home = (at - home(entries_[at].key)) & mask_;
            const std::size_t from_hole = (at - hole) & mask_;
            if (from_home >= from_hole) {
                entries_[hole] = entries_[at];
                hole = at;
            }
        }
        entries_[hole].place = kNone;
        --count_;
        return place;
    }

    // Of a key that is there.
    u32 erase(u64 key) noexcept { return erase_at(locate(key)); }

    // Gives every place another number: renumber(place).
    template <typename Renumber>
    void renumber(Renumber&& renumbered) {
        for (Entry& entry : entries_)
            if (entry.place != kNone) entry.place = renumbered(entry.place);
    }

    // As small as it can be.
    void shrink() {
        std::size_t entries = 64;
        while (count_ * 10 > entries * 7) entries *= 2;
        if (count_ == 0)
            *this = PlaceIndex{};
        else if (entries < entries_.size())
            rehash(entries);
    }

private:
    using Entries = std::vector<Entry, LargePages<Entry>>;
    static constexpr int kGlances = 4;

    // Allocators hand out multiples of 16 to 512: the multiplication brings the bits that differ to the top.
    std::size_t home(u64 key) const noexcept {
        return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ull) >> shift_);
    }

    void rehash(std::size_t entries) {
        Entries grown(entries);  // before anything changes: memory may end
        const Entries old = std::exchange(entries_, std::move(grown));
        mask_ = entries - 1;
        shift_ = 64 - static_cast<unsigned>(__builtin_ctzll(entries));
        for (const Entry& entry : old) {
            if (entry.place == kNone) continue;
            std::size_t at = home(entry.key);
            while (entries_[at].place != kNone) at = (at + 1) & mask_;
            entries_[at] = entry;
        }
    }

    Entries entries_;
    std::size_t mask_ = 0;
    std::size_t count_ = 0;
    unsigned shift_ = 0;
};

}  // namespace memscope::kernel
