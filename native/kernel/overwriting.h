// Operators that write a tensor without reading it: what stood there before is lost.
//
// Schemas say that an operator writes an argument, not whether it also reads it, as add_ does. These do not; what an
// operator returns anew it never reads.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "record/record.h"

namespace memscope::kernel {

inline constexpr std::string_view kOverwriting[] = {
    "copy_.default",    "fill_.Scalar",         "fill_.Tensor",           "zero_.default",
    "uniform_.default", "normal_.default",      "random_.default",        "random_.from",
    "random_.to",       "exponential_.default", "bernoulli_.float",       "log_normal_.default",
    "cauchy_.default",  "geometric_.default",   "_foreach_zero_.default", "_foreach_copy_.default",
};

// name: string id of an ACCESS's operator.
inline bool is_overwriting(u64 name) {
    static const auto ids = [] {
        std::array<u64, std::size(kOverwriting)> found{};
        for (std::size_t at = 0; at < found.size(); ++at) {
            const std::string text = "torch._ops.aten." + std::string(kOverwriting[at]);
            found[at] = text_id(text.data(), text.size());
        }
        std::sort(found.begin(), found.end());
        return found;
    }();
    return std::binary_search(ids.begin(), ids.end(), name);
}

}  // namespace memscope::kernel
