// The rows of a query of a SQLite database, as cells of text.
//
// In: a database, opened for reading, and one statement. Out: its rows one after the other. Whole numbers become text
// again, NULL an empty cell, and other numbers `?`: no column of upstream's has any. Python's own module makes an
// object of each cell, which takes several times as long as reading it (benchmarks/imports.py).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/sqlite_library.h"

namespace memscope::kernel {

class SqliteRows {
public:
    // place: a URI. settings: a statement that is run before. Throws SqliteError, as all do.
    SqliteRows(const std::string& place, const std::string& settings, const std::string& query);
    ~SqliteRows();
    SqliteRows(const SqliteRows&) = delete;
    SqliteRows& operator=(const SqliteRows&) = delete;

    // Whether there was another row; its cells hold until the next is asked for.
    bool next();
    const std::vector<std::string_view>& cells() const noexcept { return cells_; }

private:
    void close() noexcept;
    [[noreturn]] void fail() const;
    std::string_view cell(int at);

    void* database_ = nullptr;
    void* statement_ = nullptr;
    std::vector<std::string_view> cells_;
    std::vector<std::array<char, 24>> numbers_;  // texts of whole numbers, by column
};

}  // namespace memscope::kernel
