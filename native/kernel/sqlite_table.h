// Rows into a table of an SQLite database, through the SQLite library that Python has loaded.
//
// Python's own module takes the interpreter's lock again for every row, so that several files at once are no faster
// than one. Here a thread that writes a file needs no lock. Where no library is found (sqlite_library.h), Python's
// module does the work (export/files.py).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernel/sqlite_library.h"
#include "record/record.h"

namespace memscope::kernel {

class SqliteTable {
public:
    // Whether there is a library.
    static bool is_available() noexcept;

    // Opens an existing database, to insert by the statement `insert` with `columns` parameters. Without a journal and
    // without waiting for the disk: a file that is not finished is of no use to anybody. Throws SqliteError, as all do.
    SqliteTable(const std::string& path, const std::string& insert, int columns);
    ~SqliteTable();
    SqliteTable(const SqliteTable&) = delete;
    SqliteTable& operator=(const SqliteTable&) = delete;

    void begin() { run("BEGIN"); }
    void commit() { run("COMMIT"); }

    // The cells of a row, from left to right; texts must hold until add().
    void number(i64 value);
    void text(std::string_view value);
    void add();

    // Nothing may be called afterwards.
    void close() noexcept;

private:
    void run(const char* sql);
    [[noreturn]] void fail() const;

    void* database_ = nullptr;
    void* statement_ = nullptr;
    int columns_;
    int at_ = 0;
};

}  // namespace memscope::kernel
