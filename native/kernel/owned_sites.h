// Which lines each owner has its bytes from: whose bytes a pool holds (pool_owners.h), told apart by site as well.
//
//   pair    of an owner that somebody has named and a site, interned for the ring; number 0 is of what nobody has named
//           and of pairs for which there is no room. So the numbers of a pool's pairs add up to its level, too
//   begin   nothing is followed of a pool before a block of it is named: until then all of it is number 0's
//   latest  blocks of a site nearly always have the same named owner, so that each site remembers its latest pair:
//           no hash lookup for each begin, label and end
//
// Memory: 48 bytes for each of kMaxPairs pairs, 4 for each site up to the last with one, and what pool_owners.h says
// once more for pools with named blocks.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "kernel/owner_names.h"
#include "kernel/phases.h"
#include "kernel/pool_owners.h"
#include "record/record.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxPairs = 1u << 14;

// Whose the bytes of one pool are.
struct OwnedBytes {
    PoolOwners owners;
    PoolOwners pairs;
    bool has_pairs = false;
    std::unique_ptr<PoolPhases> phases;  // from the first phase of the process on

    void note_level(u64 allocs, u32 step) {
        owners.note_level(allocs, step);
        if (has_pairs) pairs.note_level(allocs, step);
        if (phases != nullptr) phases->note_level(allocs, step);
    }
    void close(u32 step, u64 allocs) {
        owners.close(step, allocs);
        if (has_pairs) pairs.close(step, allocs);
    }
    void shrink() {
        owners.shrink();
        pairs.shrink();
    }
};

class OwnedSites {
public:
    struct Pair {
        OwnerNumber owner = 0;
        u32 site = 0;
    };

    // is_known: whether somebody has named the owner.
    OwnerNumber number(OwnerNumber owner, bool is_known, u32 site) {
        if (!is_known) return 0;
        if (site < latest_.size() && latest_[site].owner == owner) return latest_[site].number;
        return find(owner, site);
    }
    const Pair& operator[](OwnerNumber number) const noexcept { return pairs_[number]; }

private:
    struct Latest {
        OwnerNumber owner = 0;  // which nobody has named: there is none
        OwnerNumber number = 0;
    };

    [[gnu::noinline]] OwnerNumber find(OwnerNumber owner, u32 site) {
        if (site >= latest_.size()) latest_.resize(site + std::size_t{1});
        latest_[site] = {owner, number_of(owner, site)};
        return latest_[site].number;
    }
    OwnerNumber number_of(OwnerNumber owner, u32 site) {
        const u64 key = u64{owner} << 32 | site;
        if (const auto found = numbers_.find(key); found != numbers_.end()) return found->second;
        if (pairs_.size() >= kMaxPairs) return 0;
        const auto next = static_cast<OwnerNumber>(pairs_.size());
        pairs_.push_back({owner, site});
        numbers_.emplace(key, next);
        return next;
    }

    std::vector<Pair> pairs_{1};
    std::vector<Latest> latest_;  // by site
    std::unordered_map<u64, OwnerNumber> numbers_;
};

}  // namespace memscope::kernel
