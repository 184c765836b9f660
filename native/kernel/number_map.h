// What a fold knows of some live blocks, by their numbers: an index of places (place_index.h), and the values beside
// it. A place that is free is the next one's, which is in the cache then.
//
// Memory: 23 to 46 bytes and a value for each that was there at once.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernel/place_index.h"

namespace memscope::kernel {

template <typename Value>
class NumberMap {
public:
    std::size_t size() const noexcept { return index_.size(); }
    bool empty() const noexcept { return index_.size() == 0; }

    // null: it is not there. Stays where it is until another is added.
    Value* find(u64 number) noexcept {
        const u32 place = index_.find(number);
        return place == PlaceIndex::kNone ? nullptr : &slots_[place].value;
    }
    const Value* find(u64 number) const noexcept {
        const u32 place = index_.find(number);
        return place == PlaceIndex::kNone ? nullptr : &slots_[place].value;
    }
    // Its value, a new one where there was none. Every pointer to a value is void afterwards. number: not 0.
    Value& obtain(u64 number) {
        PlaceIndex::Entry& entry = index_.claim(number);
        if (entry.place == PlaceIndex::kNone) {
            if (unused_.empty()) {
                slots_.emplace_back();
                unused_.reserve(slots_.capacity());  // erase() must not allocate
                unused_.push_back(static_cast<u32>(slots_.size() - 1));
            }
            const u32 place = unused_.back();
            slots_[place] = Slot{number, Value{}};
            unused_.pop_back();
            index_.fill(entry, number, place);
        }
        return slots_[entry.place].value;
    }
    // Where it may be missing.
    void erase(u64 number) noexcept {
        if (index_.find(number) == PlaceIndex::kNone) return;
        const u32 place = index_.erase(number);
        slots_[place].number = 0;
        unused_.push_back(place);
    }

    // Every one: visit(number, value).
    template <typename Visit>
    void each(Visit&& visit) {
        for (Slot& slot : slots_)
            if (slot.number != 0) visit(slot.number, slot.value);
    }
    // That of the place, counted round and round; the map must not be empty. 0: the place is free.
    struct One {
        u64 number;
        Value& value;
    };
    One at_place(std::size_t place) noexcept {
        Slot& slot = slots_[place % slots_.size()];
        return {slot.number, slot.value};
    }

    // Gives back what those that are there do not need. Every pointer to a value is void afterwards.
    void shrink() {
        if (empty()) {
            *this = NumberMap{};
            return;
        }
        std::vector<Slot> live;
        live.reserve(size());
        std::vector<u32> unused;
        unused.reserve(live.capacity());
        index_.renumber([&](u32 place) {
            live.push_back(slots_[place]);
            return static_cast<u32>(live.size() - 1);
        });
        slots_ = std::move(live);
        unused_ = std::move(unused);
        index_.shrink();
    }

private:
    struct Slot {
        u64 number = 0;  // 0: the place is free
        Value value{};
    };

    PlaceIndex index_;
    std::vector<Slot> slots_;
    std::vector<u32> unused_;  // places, the latest last
};

}  // namespace memscope::kernel
