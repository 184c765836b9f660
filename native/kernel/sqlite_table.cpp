#include "kernel/sqlite_table.h"

#include <dlfcn.h>

namespace memscope::kernel {

namespace {

constexpr int kOk = 0, kDone = 101;
constexpr int kOpenReadWrite = 0x2;

// type of the result, name, parameters. Handles are void*: what they point to is SQLite's business.
#define MEMSCOPE_SQLITE_FUNCTIONS(X)                                    \
    X(int, open_v2, (const char*, void**, int, const char*))            \
    X(int, close, (void*))                                              \
    X(int, exec, (void*, const char*, void*, void*, char**))            \
    X(int, prepare_v2, (void*, const char*, int, void**, const char**)) \
    X(int, finalize, (void*))                                           \
    X(int, bind_int64, (void*, int, long long))                         \
    X(int, bind_text, (void*, int, const char*, int, void*))            \
    X(int, step, (void*))                                               \
    X(int, reset, (void*))                                              \
    X(const char*, errmsg, (void*))

struct Library {
#define X(result, name, parameters) result(*name) parameters = nullptr;
    MEMSCOPE_SQLITE_FUNCTIONS(X)
#undef X
    bool is_whole = true;

    Library() noexcept {
        // Of a Python into which SQLite is built, the functions may be the program's own.
        void* loaded = RTLD_DEFAULT;
        for (const char* name : {"libsqlite3.so", "libsqlite3.so.0"})
            if (void* found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) loaded = found;
#define X(result, name, parameters)                                                 \
    name = reinterpret_cast<result(*) parameters>(dlsym(loaded, "sqlite3_" #name)); \
    is_whole = is_whole && name != nullptr;
        MEMSCOPE_SQLITE_FUNCTIONS(X)
#undef X
    }
};

const Library& library() noexcept {
    static const Library found;
    return found;
}

}  // namespace

bool SqliteTable::is_available() noexcept { return library().is_whole; }

SqliteTable::SqliteTable(const std::string& path, const std::string& insert, int columns) : columns_(columns) {
    if (!is_available()) throw SqliteError("no SQLite library is loaded");
    try {
        if (library().open_v2(path.c_str(), &database_, kOpenReadWrite, nullptr) != kOk) fail();
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
