// The SQLite library that Python has loaded.
//
// Nothing of SQLite is needed to build this: the few functions that are called are looked up by name, in the library
// that Python's module sqlite3 has brought (its C interface does not change, sqlite.org/c3ref). Handles are void*: what
// they point to is SQLite's business.
#pragma once

#include <stdexcept>

namespace memscope::kernel {

class SqliteError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// type of the result, name, parameters
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
    X(int, column_count, (void*))                                       \
    X(void*, column_value, (void*, int))                                \
    X(int, value_type, (void*))                                         \
    X(int, value_bytes, (void*))                                        \
    X(long long, value_int64, (void*))                                  \
    X(const unsigned char*, value_text, (void*))                        \
    X(const void*, value_blob, (void*))                                 \
    X(const char*, errmsg, (void*))

struct SqliteLibrary {
#define X(result, name, parameters) result(*name) parameters = nullptr;
    MEMSCOPE_SQLITE_FUNCTIONS(X)
#undef X
    bool is_whole = true;

    static constexpr int kOk = 0, kRow = 100, kDone = 101;
    static constexpr int kOpenReadOnly = 0x1, kOpenReadWrite = 0x2, kOpenUri = 0x40, kOpenNoMutex = 0x8000;
    static constexpr int kInteger = 1, kFloat = 2, kText = 3, kBlob = 4, kNull = 5;

    // Looked up once.
    static const SqliteLibrary& get() noexcept;

private:
    SqliteLibrary() noexcept;
};

}  // namespace memscope::kernel
