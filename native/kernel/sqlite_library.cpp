#include "kernel/sqlite_library.h"

#include <dlfcn.h>

namespace memscope::kernel {

SqliteLibrary::SqliteLibrary() noexcept {
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

const SqliteLibrary& SqliteLibrary::get() noexcept {
    static const SqliteLibrary found;
    return found;
}

}  // namespace memscope::kernel
