// Owners of blocks by number: what upstream writes as PTA@weight@ops is a root and up to seven labels.
//
//   root    pool << 16 | device type << 8 | module: the first level, which the allocation itself says. module: the part
//           of CANN that asked, of the driver's blocks (HAL) the top byte of their flag word, else 0.
//   labels  one string id per level below it, 0 for an empty one; record.h numbers the levels.
//
// Labels and owners are interned; number 0 is of owners for which there is no room, "other". Texts are made by readers:
// texts that the folds themselves give have the ids that a program's own would have.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "kernel/pool_key.h"
#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

inline constexpr u32 kLevels = 7;     // below the root
inline constexpr u32 kUserLevel = 5;  // the first of those that programs name; 1 to 4: COMPONENT to DETAIL_2
inline constexpr u32 kDetail1 = 3;
inline constexpr u32 kDetail2 = 4;
inline constexpr u32 kUserLevels = 3;
inline constexpr std::size_t kMaxOwners = 1u << 13;  // 65 bytes each

// Labels that folds give. name, text
#define MEMSCOPE_FOLD_LABELS(X) \
    X(ACTIVATION, "activation") \
    X(TEMPORARY, "temporary")   \
    X(OPS, "ops")

#define X(name, text) name,
enum class FoldLabel : u8 { MEMSCOPE_FOLD_LABELS(X) COUNT };
#undef X
inline constexpr std::size_t kFoldLabels = static_cast<std::size_t>(FoldLabel::COUNT);
u64 label_id(FoldLabel label) noexcept;

using Labels = std::array<u64, kLevels>;  // of level 1 and on
using OwnerNumber = u16;
using LabelsNumber = u32;                       // 0: none
inline constexpr LabelsNumber kNoLabels = ~0u;  // there are too many different ones

class OwnerNames {
public:
    OwnerNames();

    LabelsNumber number_of(const Labels& labels);
    // The same with another label at `level`.
    LabelsNumber with(LabelsNumber labels, u32 level, u64 label);
    // kOther when there are too many.
    OwnerNumber owner(u32 root, LabelsNumber labels);

    const Labels& labels(OwnerNumber owner) const noexcept { return labels_[owners_[owner].labels]; }
    // Of labels that no owner need have; 0 without one.
    u64 component(LabelsNumber labels) const noexcept { return labels < labels_.size() ? labels_[labels][0] : 0; }
    LabelsNumber labels_number(OwnerNumber owner) const noexcept { return owners_[owner].labels; }
    u32 root(OwnerNumber owner) const noexcept { return owners_[owner].root; }
    // A hash of root and labels, the same in every process: by it readers join the tables of rings.
    u64 id(OwnerNumber owner) const noexcept { return owners_[owner].id; }

    // Whether anything but upstream's weak `ops` is known of it below its root.
    bool is_known(OwnerNumber owner) const noexcept { return is_known_[owner] != 0; }

    void append(OwnerTable& table) const;

    static constexpr OwnerNumber kOther = 0;

private:
    struct Owner {
        u64 id = 0;
        u32 root = 0;
        LabelsNumber labels = 0;
    };

    std::vector<Labels> labels_;
    std::vector<Owner> owners_;
    std::vector<u8> is_known_;  // by owner: asked at each event, found once
    std::unordered_map<u64, LabelsNumber> labels_by_hash_;
    std::unordered_map<u64, OwnerNumber> owners_by_parts_;  // root << 32 | labels
};

// The root of a block.
inline u32 root_of(PoolKey pool, u64 flag_word) noexcept {
    const u32 module = pool.pool == static_cast<u8>(Pool::HAL) ? static_cast<u32>(flag_word >> 56) : 0;
    return u32{pool.pool} << 16 | u32{pool.device_type} << 8 | module;
}

}  // namespace memscope::kernel
