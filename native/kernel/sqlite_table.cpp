#include "kernel/sqlite_table.h"

namespace memscope::kernel {

namespace {

constexpr int kOk = SqliteLibrary::kOk, kDone = SqliteLibrary::kDone;

const SqliteLibrary& library() noexcept { return SqliteLibrary::get(); }

}  // namespace

bool SqliteTable::is_available() noexcept { return library().is_whole; }

SqliteTable::SqliteTable(const std::string& path, const std::string& insert, int columns) : columns_(columns) {
    if (!is_available()) throw SqliteError("no SQLite library is loaded");
    try {
        if (library().open_v2(path.c_str(), &database_, SqliteLibrary::kOpenReadWrite, nullptr) != kOk) fail();
        run("PRAGMA journal_mode=OFF");
        run("PRAGMA synchronous=OFF");
        if (library().prepare_v2(database_, insert.c_str(), -1, &statement_, nullptr) != kOk) fail();
    } catch (...) {
        close();
        throw;
    }
}

SqliteTable::~SqliteTable() { close(); }

void SqliteTable::number(i64 value) {
    if (library().bind_int64(statement_, ++at_, value) != kOk) fail();
}

void SqliteTable::text(std::string_view value) {
    const char* bytes = value.data() == nullptr ? "" : value.data();
    if (library().bind_text(statement_, ++at_, bytes, static_cast<int>(value.size()), nullptr) != kOk) fail();
}

void SqliteTable::add() {
    if (at_ != columns_) throw SqliteError("a row of another table");
    at_ = 0;
    const int status = library().step(statement_);
    if (library().reset(statement_) != kOk || status != kDone) fail();
}

void SqliteTable::close() noexcept {
    if (statement_ != nullptr) library().finalize(statement_);
    if (database_ != nullptr) library().close(database_);
    statement_ = database_ = nullptr;
}

void SqliteTable::run(const char* sql) {
    if (database_ == nullptr || library().exec(database_, sql, nullptr, nullptr, nullptr) != kOk) fail();
}

void SqliteTable::fail() const {
    throw SqliteError(database_ == nullptr ? "the database is closed" : library().errmsg(database_));
}

}  // namespace memscope::kernel
