// Whose each block is, by the labels that the program and our own look at its modules and optimizers give.
//
//   birth    a block belongs to the root of its pool and to the labels that its thread has set then
//   address  LABEL_ADDR sets one level of the block that holds the address. The first at a level says what the block
//            has been from its beginning; another one later is a change, kept as a row (the same again says nothing),
//            and so is the first at a level where the program itself named the block at its birth: both are its words,
//            while what our own look at an optimizer says corrects what a framework's function is assumed to make
//   folds    `activation` and `temporary` (block_uses.h) and upstream's weak `ops` fill a level that is empty
//
// Told by the block tracker, which knows blocks. Memory: 65 bytes for each of kMaxOwners owners, 32 for each of
// kMaxOwnerChanges changes, what thread_labels.h, pool_owners.h and owned_sites.h say.
#pragma once

#include <array>
#include <unordered_map>

#include "kernel/anomalies.h"
#include "kernel/block_map.h"
#include "kernel/owned_sites.h"
#include "kernel/owner_names.h"
#include "kernel/tables.h"
#include "kernel/thread_labels.h"

namespace memscope::kernel {

inline constexpr std::size_t kMaxOwnerChanges = 1u << 16;

class Owners {
public:
    // LABEL_PUSH and LABEL_POP.
    void push(u32 tid, u32 level, u64 label, Anomalies& anomalies);
    void pop(u32 tid, u32 level, u64 label) { threads_.pop(tid, level, label, names_); }

    // Sets the owner of a block that begins.
    void begin(Block& block, PoolKey pool, OwnedBytes& sums, Anomalies& anomalies) {
        const u32 root = root_of(pool, block.attr);
        const LabelsNumber labels = threads_.of(block.tid);
        if (labels == 0 && root == latest_root_)
            block.owner = latest_plain_;
        else
            block.owner = owner_at_birth(root, labels, block, anomalies);
        block.told = labels == 0 ? 0 : told_by_program(block.owner);
        const bool pairs = follows_pairs(block, sums);
        sums.owners.born(block.owner, block.size);
        if (sums.phases != nullptr) sums.phases->born(block.owner, block.size);
        if (pairs) sums.pairs.born(pair_of(block), block.size);
    }
    // It ends.
    void end(const Block& block, OwnedBytes& sums) {
        sums.owners.died(block.owner, block.size);
        if (sums.phases != nullptr) sums.phases->died(block.owner, block.size);
        if (sums.has_pairs) sums.pairs.died(pair_of(block), block.size);
        if (!changed_.empty()) changed_.erase(block.id);
    }
    // LABEL_ADDR of a live block.
    void label(Block& block, OwnedBytes& sums, u32 level, u64 label, u32 step, u64 ts, Anomalies& anomalies);
    // A fold says what the block has been from its beginning, unless something is said at that level already.
    void suggest(Block& block, OwnedBytes& sums, u32 level, FoldLabel label, Anomalies& anomalies);

    bool is_labelled(const Block& block, u32 level) const noexcept {
        return names_.labels(block.owner)[level - 1] != 0;
    }
    // Whether anything but upstream's weak `ops` is known of it below its root.
    bool is_known(const Block& block) const noexcept { return names_.is_known(block.owner); }
    u64 id_of(const Block& block) const noexcept { return names_.id(block.owner); }
    u32 changes_of(const Block& block) const noexcept;
    // String id of the component in whose function the thread is; 0: in none.
    u64 component_of(u32 tid) const noexcept { return names_.component(threads_.of(tid)); }
    const OwnerNames& names() const noexcept { return names_; }
    const OwnedSites& sites() const noexcept { return sites_; }
    const OwnerChangeTable& changes() const noexcept { return changes_; }

private:
    OwnerNumber owner_at_birth(u32 root, LabelsNumber labels, const Block& block, Anomalies& anomalies);
    OwnerNumber number_of(u32 root, LabelsNumber labels, const Block& block, Anomalies& anomalies);
    struct Changed {
        u32 times = 0;
        u64 latest = 0;  // number of the change in its pool
    };
    void correct(Block& block, OwnedBytes& sums, OwnerNumber owner);
    // Bit per level of the program's own that has a label.
    u8 told_by_program(OwnerNumber owner) const noexcept;

    OwnerNumber pair_of(const Block& block) { return sites_.number(block.owner, is_known(block), block.site); }
    // Whether pairs of the pool are told apart; from a block on that somebody has named.
    bool follows_pairs(const Block& block, OwnedBytes& sums) const;

    OwnerNames names_;
    OwnedSites sites_;
    ThreadLabels threads_;
    OwnerChangeTable changes_;
    std::unordered_map<u64, Changed> changed_;  // live blocks, by number
    // What each fold's label made of an owner last: nearly always the next one's too. kOther: of none.
    struct Suggested {
        OwnerNumber from = OwnerNames::kOther, to = OwnerNames::kOther;
    };
    std::array<Suggested, kFoldLabels> suggested_;
    u32 latest_root_ = ~0u;  // and its owner without labels: nearly always the next one's too
    OwnerNumber latest_plain_ = 0;
};

}  // namespace memscope::kernel
