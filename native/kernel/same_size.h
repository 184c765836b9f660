// Which allocations could have taken a block of their size that was dead by then, though not freed.
//
// In: each block of a pool at its beginning, and at its end when it was touched last. Out: for a block that ends, one
// allocation after its last touch that has its size (in kSizeUnit) and could have had it; each serves once. Of a size
// the latest kRemembered allocations are known. Memory: 40 bytes times kRemembered for each of kMaxSizes sizes; beyond,
// all are forgotten and learned again.
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>

#include "record/record.h"

namespace memscope::kernel {

inline constexpr i64 kSizeUnit = 512;  // to which the allocators of cards round
inline constexpr std::size_t kRemembered = 8;
inline constexpr std::size_t kMaxSizes = 1u << 12;

class SameSize {
public:
    struct Birth {
        u64 id = 0;  // number of the block; 0: none
        u64 api = 0, ended_api = 0;
        u32 site = 0, step = 0;
        bool is_served = false;
    };

    void begin(u64 id, i64 size, u64 api, u32 site, u32 step) {
        if (sizes_.size() >= kMaxSizes) sizes_.clear();
        Recent& recent = sizes_[class_of(size)];
        recent.births[recent.next] = {id, api, 0, site, step, false};
        recent.next = (recent.next + 1) % kRemembered;
    }
    // A block that was touched last in `last` ends in `api`. The allocation that could have had it; null: none.
    Birth* end(u64 id, i64 size, u64 last, u64 api) noexcept {
        const auto found = sizes_.find(class_of(size));
        if (found == sizes_.end()) return nullptr;
        Birth* chosen = nullptr;
        for (Birth& birth : found->second.births) {
            if (birth.id == id) birth.ended_api = api;
            const bool fits =
                birth.id != 0 && birth.id != id && !birth.is_served && last < birth.api && birth.api < api;
            if (fits && (chosen == nullptr || birth.id < chosen->id)) chosen = &birth;
        }
        if (chosen != nullptr) chosen->is_served = true;
        return chosen;
    }
    void clear() noexcept { sizes_.clear(); }

private:
    struct Recent {
        std::array<Birth, kRemembered> births{};
        std::size_t next = 0;
    };
    static u64 class_of(i64 size) noexcept { return static_cast<u64>((size + kSizeUnit - 1) / kSizeUnit); }

    std::unordered_map<u64, Recent> sizes_;
};

}  // namespace memscope::kernel
