#include "kernel/sqlite_rows.h"

#include <charconv>

namespace memscope::kernel {

SqliteRows::SqliteRows(const std::string& place, const std::string& settings, const std::string& query) {
    const SqliteLibrary& library = SqliteLibrary::get();
    if (!library.is_whole) throw SqliteError("no SQLite library is loaded");
    // One thread at a time asks: no lock for each cell.
    constexpr int kFlags = SqliteLibrary::kOpenReadOnly | SqliteLibrary::kOpenUri | SqliteLibrary::kOpenNoMutex;
    try {
        if (library.open_v2(place.c_str(), &database_, kFlags, nullptr) != SqliteLibrary::kOk ||
            library.exec(database_, settings.c_str(), nullptr, nullptr, nullptr) != SqliteLibrary::kOk ||
            library.prepare_v2(database_, query.c_str(), -1, &statement_, nullptr) != SqliteLibrary::kOk)
            fail();
    } catch (...) {
        close();
        throw;
    }
    const auto columns = static_cast<std::size_t>(library.column_count(statement_));
    cells_.resize(columns);
    numbers_.resize(columns);
}

SqliteRows::~SqliteRows() { close(); }

bool SqliteRows::next() {
    const int status = SqliteLibrary::get().step(statement_);
    if (status == SqliteLibrary::kDone) return false;
    if (status != SqliteLibrary::kRow) fail();
    for (std::size_t at = 0; at < cells_.size(); ++at) cells_[at] = cell(static_cast<int>(at));
    return true;
}

// The value is asked for once: each function that takes a column looks for it and for errors anew. What SQLite calls an
// unprotected value is safe as long as one thread uses the database.
std::string_view SqliteRows::cell(int at) {
    const SqliteLibrary& library = SqliteLibrary::get();
    void* const value = library.column_value(statement_, at);
    const int type = library.value_type(value);
    switch (type) {
        case SqliteLibrary::kInteger: {
            std::array<char, 24>& text = numbers_[static_cast<std::size_t>(at)];
            const char* const end =
                std::to_chars(text.data(), text.data() + text.size(), library.value_int64(value)).ptr;
            return {text.data(), static_cast<std::size_t>(end - text.data())};
        }
        case SqliteLibrary::kText:
        case SqliteLibrary::kBlob: {
            const void* const data =
                type == SqliteLibrary::kText ? library.value_text(value) : library.value_blob(value);
            const int bytes = library.value_bytes(value);  // behind it: of UTF-16 it is another number before
            if (data == nullptr && type == SqliteLibrary::kText) fail();
            return data == nullptr ? std::string_view()
                                   : std::string_view(static_cast<const char*>(data), static_cast<std::size_t>(bytes));
        }
        case SqliteLibrary::kNull:
            return {};
        default:
            return "?";
    }
}

void SqliteRows::close() noexcept {
    if (statement_ != nullptr) SqliteLibrary::get().finalize(statement_);
    if (database_ != nullptr) SqliteLibrary::get().close(database_);
    statement_ = database_ = nullptr;
}

void SqliteRows::fail() const {
    throw SqliteError(database_ == nullptr ? "there is no memory for it" : SqliteLibrary::get().errmsg(database_));
}

}  // namespace memscope::kernel
