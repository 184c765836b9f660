// What upstream's rows of one process say beyond their event: times that only grow, running sums, numbers.
//
// In: columns of events in the order in which they are written, with the file (home) that each belongs to. Out: their
// columns ts, id, used and pool_live. The sums go on from call to call.
#pragma once

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

// Columns of events that are read here. type, name
#define MEMSCOPE_LEDGER_COLUMNS(X) \
    X(u8, kind)                    \
    X(u8, pool)                    \
    X(u8, device_type)             \
    X(i16, device)                 \
    X(u64, ts)                     \
    X(i64, size)                   \
    X(i64, used)                   \
    X(i64, total)

struct LedgerColumns {
    std::size_t n = 0;
#define X(type, name) const type* name = nullptr;
    MEMSCOPE_LEDGER_COLUMNS(X)
#undef X
};

// Columns that come out. ts: wall clock, ns. used: of MALLOC and FREE the live bytes by home and Event Type, of others
// as in the event. pool_live: the same by home and pool, -1 for other kinds. type, name
#define MEMSCOPE_LEDGER_OUTPUT(X) \
    X(i64, ts)                    \
    X(i64, used)                  \
    X(i64, pool_live)

struct Settled {
#define X(type, name) std::vector<type> name;
    MEMSCOPE_LEDGER_OUTPUT(X)
#undef X
};

// What a framework's pools hold in a home and have from the driver, and the most of either so far.
struct PoolLevels {
    i64 used = 0, total = 0;
    i64 most_used = 0, most_total = 0;
};

class RowLedger {
public:
    explicit RowLedger(i64 wall_offset) : wall_offset_(wall_offset) {}

    // Codes (device type << 16 | device + 1) of a batch, each once, sorted.
    static std::vector<u32> places(const LedgerColumns& events);
    static u32 place(u8 device_type, i16 device) noexcept {
        return u32{device_type} << 16 | static_cast<u16>(device + 1);
    }

    // home: of each row, the number of its file.
    Settled settle(const LedgerColumns& events, const u16* home);

    // Of all caching pools in a home, at the last row of that home.
    PoolLevels levels(u16 home) const noexcept;

    u64 moved_rows() const noexcept { return moved_rows_; }
    i64 moved_ns() const noexcept { return moved_ns_; }

private:
    struct Account {  // one pool in one home
        u64 key = 0;
        bool caching = false;
        std::size_t type = 0;  // index into types_
        i64 live = 0;
        PoolLevels levels;
    };
    struct TypeSum {
        u16 home = 0;
        std::string_view name;
        i64 used = 0;
    };

    Account& account(u16 home, u8 pool, u8 device_type);

    const i64 wall_offset_;
    i64 last_ts_ = 0;
    u64 moved_rows_ = 0;
    i64 moved_ns_ = 0;
    std::size_t recent_ = 0;  // index into accounts_
    std::vector<Account> accounts_;
    std::unordered_map<u64, std::size_t> index_;  // key -> index into accounts_
    std::vector<TypeSum> types_;
};

}  // namespace memscope::kernel
