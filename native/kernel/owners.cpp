#include "kernel/owners.h"

namespace memscope::kernel {

void Owners::push(u32 tid, u32 level, u64 label, Anomalies& anomalies) {
    if (!threads_.push(tid, level, label, names_)) anomalies.count(Anomaly::LEFT_OUT_LABEL);
}

OwnerNumber Owners::number_of(u32 root, LabelsNumber labels, const Block& block, Anomalies& anomalies) {
    const OwnerNumber owner = names_.owner(root, labels);
    if (owner == OwnerNames::kOther) anomalies.count(Anomaly::OTHER_OWNER, block.size);
    return owner;
}

OwnerNumber Owners::owner_at_birth(u32 root, LabelsNumber labels, const Block& block, Anomalies& anomalies) {
    const OwnerNumber owner = number_of(root, labels, block, anomalies);
    if (labels == 0) {
        latest_plain_ = owner;
        latest_root_ = root;
    }
    return owner;
}

u8 Owners::told_by_program(OwnerNumber owner) const noexcept {
    const Labels& labels = names_.labels(owner);
    unsigned told = 0;
    for (u32 level = kUserLevel; level <= kLevels; ++level)
        if (labels[level - 1] != 0) told |= 1u << level;
    return static_cast<u8>(told);
}

bool Owners::follows_pairs(const Block& block, OwnedBytes& sums) const {
    if (!sums.has_pairs && is_known(block)) {
        sums.pairs.begin_like(sums.owners);
        sums.has_pairs = true;
    }
    return sums.has_pairs;
}

void Owners::label(Block& block, OwnedBytes& sums, u32 level, u64 label, u32 step, u64 ts, Anomalies& anomalies) {
    if (level == 0 || level > kLevels || label == 0 || block.owner == OwnerNames::kOther) {
        anomalies.count(Anomaly::LEFT_OUT_LABEL);
        return;
    }
    const u8 bit = static_cast<u8>(1u << level);
    const bool is_first = (block.told & bit) == 0;
    block.told |= bit;
    if (names_.labels(block.owner)[level - 1] == label) return;
    const LabelsNumber labels = names_.with(names_.labels_number(block.owner), level, label);
    if (is_first) {
        correct(block, sums, number_of(names_.root(block.owner), labels, block, anomalies));
        return;
    }
    const Block before = block;
    block.owner = number_of(names_.root(before.owner), labels, block, anomalies);
    Changed& changed = changed_[block.id];
    changed.times += 1;
    const bool pairs = follows_pairs(block, sums);
    changed.latest = sums.owners.change_owner(before.owner, block.owner, block.size);
    if (sums.phases != nullptr) sums.phases->change_owner(before.owner, block.owner, block.size);
    if (pairs) sums.pairs.change_owner(pair_of(before), pair_of(block), block.size);
    if (changes_.owner.size() >= kMaxOwnerChanges) {
        anomalies.count(Anomaly::LEFT_OUT_CHANGE, block.size);
        return;
    }
    changes_.allocation_id.push_back(block.id);
    changes_.step.push_back(step);
    changes_.ts.push_back(ts);
    changes_.before.push_back(names_.id(before.owner));
    changes_.owner.push_back(names_.id(block.owner));
}

void Owners::suggest(Block& block, OwnedBytes& sums, u32 level, FoldLabel label, Anomalies& anomalies) {
    if (block.owner == OwnerNames::kOther || is_labelled(block, level)) return;
    Suggested& suggested = suggested_[static_cast<std::size_t>(label)];
    if (suggested.from != block.owner || suggested.to == OwnerNames::kOther) {
        suggested.from = block.owner;
        const LabelsNumber labels = names_.with(names_.labels_number(block.owner), level, label_id(label));
        suggested.to = number_of(names_.root(block.owner), labels, block, anomalies);
    }
    correct(block, sums, suggested.to);
}

void Owners::correct(Block& block, OwnedBytes& sums, OwnerNumber owner) {
    const Block before = block;
    block.owner = owner;
    const auto known = changed_.empty() ? changed_.end() : changed_.find(block.id);
    const u64 changed = known == changed_.end() ? 0 : known->second.latest;
    const bool pairs = follows_pairs(block, sums);
    sums.owners.correct_owner(before.owner, block.owner, block.size, block.id, changed);
    if (sums.phases != nullptr) sums.phases->correct_owner(before.owner, block.owner, block.size, block.id, changed);
    if (pairs) sums.pairs.correct_owner(pair_of(before), pair_of(block), block.size, block.id, changed);
}

u32 Owners::changes_of(const Block& block) const noexcept {
    if (changed_.empty()) return 0;
    const auto known = changed_.find(block.id);
    return known == changed_.end() ? 0 : known->second.times;
}

}  // namespace memscope::kernel
