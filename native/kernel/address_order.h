// Addresses of live blocks in order, to find the block that holds an address: sorted runs of some hundred, in order.
//
// A tree has a node for each address, and making and dropping nodes takes longer than all the rest. Memory: 8 bytes for
// each address where runs are full, some 25 at most.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

class AddressOrder {
public:
    // Not there yet.
    void insert(u64 ptr) {
        if (runs_.empty()) add_run(0);
        std::size_t at = run_of(ptr);
        if (runs_[at].addresses.size() == kMost) {
            Run& upper = add_run(at + 1);
            Addresses& lower = runs_[at].addresses;
            upper.addresses.assign(lower.begin() + kMost / 2, lower.end());
            upper.first = upper.addresses.front();
            lower.resize(kMost / 2);
            if (ptr >= upper.first) ++at;
        }
        Run& run = runs_[at];
        run.addresses.insert(std::lower_bound(run.addresses.begin(), run.addresses.end(), ptr), ptr);
        run.first = run.addresses.front();
    }
    // There.
    void erase(u64 ptr) noexcept {
        const std::size_t at = run_of(ptr);
        Addresses& addresses = runs_[at].addresses;
        addresses.erase(std::lower_bound(addresses.begin(), addresses.end(), ptr));
        if (addresses.empty())
            runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(at));
        else if (runs_[at].first = addresses.front(); addresses.size() < kMost / 4)
            join(at);
    }
    // The greatest that is not behind ptr; null: there is none.
    const u64* at_or_before(u64 ptr) const noexcept {
        if (runs_.empty()) return nullptr;
        const Addresses& addresses = runs_[run_of(ptr)].addresses;
        const auto after = std::upper_bound(addresses.begin(), addresses.end(), ptr);
        return after == addresses.begin() ? nullptr : &*std::prev(after);
    }

private:
    static constexpr std::size_t kMost = 128;
    using Addresses = std::vector<u64>;
    struct Run {
        u64 first = 0;
        Addresses addresses;  // never empty between two calls; with room for kMost, so that erase() does not allocate
    };

    // In which an address belongs.
    std::size_t run_of(u64 ptr) const noexcept {
        const auto after = std::upper_bound(runs_.begin(), runs_.end(), ptr,
                                            [](u64 wanted, const Run& run) { return wanted < run.first; });
        return after == runs_.begin() ? 0 : static_cast<std::size_t>(after - runs_.begin()) - 1;
    }
    Run& add_run(std::size_t at) {
        Run added;
        added.addresses.reserve(kMost);
        return *runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(at), std::move(added));
    }
    // A run that has become small goes into a neighbour that has room, or takes it in.
    void join(std::size_t at) noexcept {
        const auto joins = [this](std::size_t one) {
            return one + 1 < runs_.size() &&
                   runs_[one].addresses.size() + runs_[one + 1].addresses.size() <= kMost / 4 * 3;
        };
        if (!joins(at) && at != 0) --at;
        if (!joins(at)) return;
        Addresses& upper = runs_[at + 1].addresses;
        runs_[at].addresses.insert(runs_[at].addresses.end(), upper.begin(), upper.end());
        runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }

    std::vector<Run> runs_;
};

}  // namespace memscope::kernel
