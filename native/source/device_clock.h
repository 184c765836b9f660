// A card's counter as host time.
//
// The driver tells the counter when asked; the host's clock is read before and after, so a pair is known to half the
// time the question took. The rate is measured between pairs up to a minute apart and follows a drift; until two pairs
// are 50 ms apart it is what the driver says. Belongs to one thread.
#pragma once

#include "record/ring.h"

namespace memscope {

class DeviceClock {
public:
    using Query = i32 (*)(u32 device, i32 module, i32 info, i64* value);  // halGetDeviceInfo

    // Takes a pair. False: the driver does not tell, and nothing can be converted.
    bool sample(Query query, u32 device) noexcept {
        if (ns_per_tick_ == 0) ns_per_tick_ = 1000.0 / nominal_mhz(query, device);
        Pair pair = {0, 0};
        u64 shortest = ~u64{0};
        for (int i = 0; i < kTries; ++i) {
            i64 counter = 0;
            const u64 before = monotonic_ns();
            if (query(device, kSystem, kSystemCount, &counter) != 0 || counter <= 0) return is_known_ = false;
            const u64 took = monotonic_ns() - before;
            if (took >= shortest) continue;
            shortest = took;
            pair = {before + took / 2, static_cast<u64>(counter)};
        }
        learn(pair);
        return true;
    }

    bool is_known() const noexcept { return is_known_; }

    u64 host_ns(u64 counter) const noexcept {
        const auto ticks = static_cast<i64>(counter - newest_.counter);
        return newest_.host + static_cast<u64>(static_cast<i64>(static_cast<double>(ticks) * ns_per_tick_));
    }

private:
    static constexpr i32 kSystem = 0, kSystemCount = 13, kFrequency = 25;
    static constexpr int kTries = 5;
    static constexpr u64 kShortestBase = 50'000'000, kLongestBase = 64'000'000'000;  // ns
    struct Pair {
        u64 host;
        u64 counter;
    };

    static double nominal_mhz(Query query, u32 device) noexcept {
        i64 mhz = 0;
        const bool is_told = query(device, kSystem, kFrequency, &mhz) == 0 && mhz > 0 && mhz <= 10'000;
        return is_told ? static_cast<double>(mhz) : 50.0;
    }

    void learn(const Pair& pair) noexcept {
        if (!is_known_ || pair.counter <= newest_.counter) oldest_ = middle_ = pair;  // the first, or a card's reset
        newest_ = pair;
        is_known_ = true;
        const u64 base = newest_.host - oldest_.host;
        if (base >= kShortestBase)
            ns_per_tick_ = static_cast<double>(base) / static_cast<double>(newest_.counter - oldest_.counter);
        if (base >= kLongestBase) oldest_ = middle_;
        if (newest_.host - middle_.host >= kLongestBase / 2) middle_ = newest_;
    }

    Pair oldest_ = {0, 0}, middle_ = {0, 0}, newest_ = {0, 0};
    double ns_per_tick_ = 0;
    bool is_known_ = false;
};

}  // namespace memscope
