// Upstream's patterns of the blocks of a file, row by row.
//
// In: its rows of operators and blocks, process by process, each in the order of their IDs. Out: a row for each block
// that shows a pattern, when it ends: with its FREE, with another MALLOC of its number, or with its process. The rules
// are upstream's to the letter (api_order.h, block_patterns.h).
//
// Memory: some 150 bytes for each block that is alive, and the rows until they are taken.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/api_order.h"
#include "kernel/block_patterns.h"
#include "record/record.h"

namespace memscope::kernel {

// type, name. What is known of a block's MALLOC row; bits: of its patterns.
#define MEMSCOPE_INEFFICIENT_COLUMNS(X) \
    X(u32, pid)                         \
    X(u8, pool)                         \
    X(i64, id)                          \
    X(u64, ptr)                         \
    X(i64, size)                        \
    X(i64, allocation_id)               \
    X(u64, attr_at)                     \
    X(u32, attr_bytes)                  \
    X(i16, device)                      \
    X(u8, device_type)                  \
    X(u8, bits)

class InefficientRows {
public:
    struct Table {
#define X(type, name) std::vector<type> name;
        MEMSCOPE_INEFFICIENT_COLUMNS(X)
#undef X
    };
    struct Row {
#define X(type, name) type name = {};
        MEMSCOPE_INEFFICIENT_COLUMNS(X)
#undef X
    };

    explicit InefficientRows(u64 threshold) : threshold_(threshold) {}

    // row: of a block, or with the process of an operator alone. framework: aux of an operator.
    void add(Kind kind, u32 framework, const Row& row);
    void finish();  // there are no more
    Table take() noexcept { return std::exchange(table_, {}); }

private:
    struct Begun {
        ApiLife life;
        Row row;
    };
    void end(const Begun& block);

    const u64 threshold_;
    u32 pid_ = 0;
    std::optional<ApiOrder> order_{ApiOrder::Rule::LETTER};
    std::unordered_map<i64, Begun> begun_;  // by allocation_id
    Table table_;
};

}  // namespace memscope::kernel
