// Rows of lives on their way into a table: some are put together in a place of fixed columns first.
//
// A table of thirty columns that grow one by one costs a look at each column's room for every row; and columns of the
// same length lie at the same distance from the beginning of a page, so that all of them fight for the same few places
// of the processor's first cache. Here the columns stand beside each other, and whole pieces of them are appended.
#pragma once

#include <cstddef>

#include "kernel/tables.h"

namespace memscope::kernel {

class LifeRows {
public:
    // 13 KiB; columns of 8 bytes begin in different lines of a cache.
    static constexpr std::size_t kRows = 72;

#define X(type, name) type name[kRows];
    struct Columns {
        MEMSCOPE_LIFE_COLUMNS(X)
    };
#undef X

    std::size_t size() const noexcept { return n_; }

    // The next row, which the caller fills in every one of columns().
    std::size_t add(LifeTable& table) {
        if (n_ == kRows) flush(table);
        return n_++;
    }
    Columns& columns() noexcept { return columns_; }

    // Room for so many is made in a table at once when it gets its first.
    void expect(std::size_t rows) noexcept { expected_ = rows; }

    // Appends what is here.
    void flush(LifeTable& table) {
        if (n_ == 0) return;
        if (table.ptr.empty()) {
#define X(type, name) table.name.reserve(expected_);
            MEMSCOPE_LIFE_COLUMNS(X)
#undef X
        }
#define X(type, name) table.name.insert(table.name.end(), columns_.name, columns_.name + n_);
        MEMSCOPE_LIFE_COLUMNS(X)
#undef X
        n_ = 0;
    }

private:
    Columns columns_;
    std::size_t n_ = 0, expected_ = 0;
};

}  // namespace memscope::kernel
