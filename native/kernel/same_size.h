// Which allocations could have taken a block of their size that was dead by then, though not freed.
//
// In: each block at its beginning, and at its end when it was touched last; whose: the number of the pool, or of the
// stream's part of it, within which a block may take another's place. Out: for a block that ends, one allocation of the
// same part after its last touch that has its size (in kSizeUnit) and could have had it; each serves once. Of a size
// the latest kRemembered allocations are known. Memory: 370 bytes for each of kMaxSizes sizes of all pools and streams
// of a ring, 3 MiB; one that was not allocated lately makes room for another.
#pragma once

#include <array>
#include <cstddef>

#include "kernel/number_map.h"
#include "record/record.h"

namespace memscope::kernel {

inline constexpr i64 kSizeUnit = 512;  // to which the allocators of cards round
inline constexpr std::size_t kRemembered = 8;
inline constexpr std::size_t kMaxSizes = 1u << 13;

class SameSize {
public:
    struct Birth {
        u64 id = 0;  // number of the block; 0: none
        u64 api = 0, ended_api = 0;
        u32 site = 0, step = 0;
        bool is_served = false;
    };

    // whose: from 1 to 2^25.
    void begin(u32 whose, u64 id, i64 size, u64 api, u32 site, u32 step) {
        const u64 key = key_of(whose, size);
        Recent* recent = sizes_.find(key);
        if (recent != nullptr) {
            recent->is_in_use = true;
        } else {
            if (sizes_.size() >= kMaxSizes) forget_one();
            recent = &sizes_.obtain(key);
        }
        recent->births[recent->next] = {id, api, 0, site, step, false};
        recent->next = static_cast<u8>((recent->next + 1) % kRemembered);
    }
    // A block that was touched last in `last` ends in `api`. The allocation that could have had it; null: none.
    Birth* end(u32 whose, u64 id, i64 size, u64 last, u64 api) noexcept {
        Recent* const recent = sizes_.find(key_of(whose, size));
        if (recent == nullptr) return nullptr;
        Birth* chosen = nullptr;
        for (Birth& birth : recent->births) {
            if (birth.id == id) birth.ended_api = api;
            const bool fits =
                birth.id != 0 && birth.id != id && !birth.is_served && last < birth.api && birth.api < api;
            if (fits && (chosen == nullptr || birth.id < chosen->id)) chosen = &birth;
        }
        if (chosen != nullptr) chosen->is_served = true;
        return chosen;
    }
    std::size_t sizes() const noexcept { return sizes_.size(); }

private:
    struct Recent {
        std::array<Birth, kRemembered> births{};
        u8 next = 0;
        bool is_in_use = false;  // came again since the hand has passed
    };
    // Sizes have 47 bits (kMaxBlockBytes).
    static u64 key_of(u32 whose, i64 size) noexcept {
        return u64{whose} << 39 | static_cast<u64>((size + kSizeUnit - 1) / kSizeUnit);
    }
    // The next that did not come again since the hand passed it last. One that has come once is not in use by that: of
    // sizes that are all in use the hand would pass every one, and take one that comes all the time.
    void forget_one() noexcept {
        for (;;) {
            const auto [key, recent] = sizes_.at_place(hand_++);
            if (key == 0) continue;
            if (!recent.is_in_use) {
                sizes_.erase(key);
                return;
            }
            recent.is_in_use = false;
        }
    }

    NumberMap<Recent> sizes_;
    std::size_t hand_ = 0;
};

}  // namespace memscope::kernel
