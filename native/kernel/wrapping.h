// Sums of sizes that a damaged ring made up wrap around, which signed numbers must not.
#pragma once

#include "record/record.h"

namespace memscope::kernel {

inline i64 plus(i64 sum, i64 more) noexcept { return static_cast<i64>(static_cast<u64>(sum) + static_cast<u64>(more)); }
inline i64 minus(i64 sum, i64 less) noexcept {
    return static_cast<i64>(static_cast<u64>(sum) - static_cast<u64>(less));
}

}  // namespace memscope::kernel
