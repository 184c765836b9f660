#include "kernel/owner_names.h"

#include <cstring>

namespace memscope::kernel {

namespace {

u64 hash_of(const Labels& labels) noexcept {
    u64 hash = 0;
    for (const u64 label : labels) hash = combine64(hash, label);
    return hash;
}

bool says_more_than_ops(const Labels& labels) noexcept {
    for (u32 level = 1; level <= kLevels; ++level)
        if (labels[level - 1] != 0 && (level != kDetail2 || labels[level - 1] != label_id(FoldLabel::OPS))) return true;
    return false;
}

}  // namespace

u64 label_id(FoldLabel label) noexcept {
    static constexpr const char* kTexts[] = {
#define X(name, text) text,
        MEMSCOPE_FOLD_LABELS(X)
#undef X
    };
    static const auto ids = [] {
        std::array<u64, std::size(kTexts)> made{};
        for (std::size_t i = 0; i < made.size(); ++i) made[i] = text_id(kTexts[i], strlen(kTexts[i]));
        return made;
    }();
    return ids[static_cast<std::size_t>(label)];
}

OwnerNames::OwnerNames() {
    labels_.push_back({});
    owners_.push_back({});
    is_known_.push_back(0);
}

LabelsNumber OwnerNames::number_of(const Labels& labels) {
    if (labels == Labels{}) return 0;
    const auto [known, is_new] =
        labels_by_hash_.try_emplace(hash_of(labels), static_cast<LabelsNumber>(labels_.size()));
    if (!is_new) return known->second;
    if (labels_.size() >= kMaxOwners) {
        labels_by_hash_.erase(known);
        return kNoLabels;
    }
    labels_.push_back(labels);
    return known->second;
}

LabelsNumber OwnerNames::with(LabelsNumber labels, u32 level, u64 label) {
    if (labels == kNoLabels) return labels;
    Labels changed = labels_[labels];
    changed[level - 1] = label;
    return number_of(changed);
}

OwnerNumber OwnerNames::owner(u32 root, LabelsNumber labels) {
    if (labels == kNoLabels) return kOther;
    const u64 parts = u64{root} << 32 | labels;
    const auto [known, is_new] = owners_by_parts_.try_emplace(parts, static_cast<OwnerNumber>(owners_.size()));
    if (!is_new) return known->second;
    if (owners_.size() >= kMaxOwners) {
        owners_by_parts_.erase(known);
        return kOther;
    }
    // Never a root's number, which stands for itself in upstream's rows.
    owners_.push_back(Owner{combine64(hash_of(labels_[labels]), root) | u64{1} << 63, root, labels});
    is_known_.push_back(says_more_than_ops(labels_[labels]) ? 1 : 0);
    return known->second;
}

void OwnerNames::append(OwnerTable& table) const {
    for (const Owner& one : owners_) {
        const Labels& labels = labels_[one.labels];
        table.owner.push_back(one.id);
        table.root.push_back(one.root);
        table.component.push_back(labels[0]);
        table.process.push_back(labels[1]);
        table.detail_1.push_back(labels[2]);
        table.detail_2.push_back(labels[3]);
        table.user_1.push_back(labels[4]);
        table.user_2.push_back(labels[5]);
        table.user_3.push_back(labels[6]);
    }
}

}  // namespace memscope::kernel
