#include "kernel/row_ledger.h"

#include <algorithm>

#include "kernel/upstream_rows.h"

namespace memscope::kernel {

namespace {

// Sums of damaged sizes may leave the range: they wrap instead of being undefined.
i64 sum(i64 a, i64 b) noexcept { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }

// Upstream's snapshots tell of these.
constexpr bool is_caching(u8 pool) noexcept {
    return pool == static_cast<u8>(Pool::PTA) || pool == static_cast<u8>(Pool::MINDSPORE) ||
           pool == static_cast<u8>(Pool::CUDA);
}

}  // namespace

std::vector<u32> RowLedger::places(const LedgerColumns& events) {
    std::vector<u32> found;
    u32 last = 0;
    for (std::size_t row = 0; row < events.n; ++row) {
        const u32 code = place(events.device_type[row], events.device[row]);
        if (code == last && !found.empty()) continue;
        last = code;
        const auto at = std::lower_bound(found.begin(), found.end(), code);
        if (at == found.end() || *at != code) found.insert(at, code);
    }
    return found;
}

Settled RowLedger::settle(const LedgerColumns& events, const u16* home) {
    Settled out;
#define X(type, name) out.name.resize(events.n);
    MEMSCOPE_LEDGER_OUTPUT(X)
#undef X
    for (std::size_t row = 0; row < events.n; ++row) {
        const i64 wall = sum(static_cast<i64>(events.ts[row]), wall_offset_);
        const i64 later = wall > last_ts_ ? wall : sum(last_ts_, 1);
        if (later != wall) {
            ++moved_rows_;
            moved_ns_ = std::max(moved_ns_, sum(later, static_cast<i64>(u64{0} - static_cast<u64>(wall))));
        }
        out.ts[row] = last_ts_ = later;

        const bool malloc = events.kind[row] == static_cast<u8>(Kind::MALLOC);
        if (!malloc && events.kind[row] != static_cast<u8>(Kind::FREE)) {
            out.used[row] = events.used[row];
            out.pool_live[row] = -1;
            continue;
        }
        const i64 size = events.size[row];
        const i64 delta = malloc ? size : static_cast<i64>(u64{0} - static_cast<u64>(size));
        Account& pool = account(home[row], events.pool[row], events.device_type[row]);
        pool.live = sum(pool.live, delta);
        TypeSum& type = types_[pool.type];
        type.used = sum(type.used, delta);
        out.used[row] = type.used;
        out.pool_live[row] = pool.live;
        if (pool.caching) {
            pool.levels.used = pool.live;
            pool.levels.most_used = std::max(pool.levels.most_used, pool.live);
            if (const i64 total = events.total[row]; total >= 0) {
                pool.levels.total = total;
                pool.levels.most_total = std::max(pool.levels.most_total, total);
            }
        }
    }
    return out;
}

PoolLevels RowLedger::levels(u16 home) const noexcept {
    PoolLevels all;
    for (const Account& account : accounts_) {
        if (!account.caching || account.key >> 16 != home) continue;
        all.used = sum(all.used, account.levels.used);
        all.total = sum(all.total, account.levels.total);
        all.most_used = sum(all.most_used, account.levels.most_used);
        all.most_total = sum(all.most_total, account.levels.most_total);
    }
    return all;
}

RowLedger::Account& RowLedger::account(u16 home, u8 pool, u8 device_type) {
    const u64 key = u64{home} << 16 | u64{pool} << 8 | device_type;
    if (recent_ < accounts_.size() && accounts_[recent_].key == key) return accounts_[recent_];
    const auto [found, is_new] = index_.try_emplace(key, accounts_.size());
    recent_ = found->second;
    if (!is_new) return accounts_[recent_];
    const std::string_view name = event_type(pool, device_type);
    std::size_t type = 0;
    while (type < types_.size() && (types_[type].home != home || types_[type].name != name)) ++type;
    if (type == types_.size()) types_.push_back({home, name, 0});
    accounts_.push_back({key, is_caching(pool), type, 0, {}});
    return accounts_.back();
}

}  // namespace memscope::kernel
