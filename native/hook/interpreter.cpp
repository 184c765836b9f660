#include "hook/interpreter.h"

#include <dlfcn.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace memscope {
namespace {

// The package lies around this library; sys.path gets it only for the import, so that nothing else of its
// site-packages comes into the program.
constexpr const char kImport[] =
    "exec(\"\"\"\n"
    "import sys\n"
    "if 'msmemscope.collect.bootstrap' not in sys.modules:\n"
    "    sys.path.append(%s)\n"
    "    try:\n"
    "        import msmemscope.collect.bootstrap\n"
    "    except Exception:\n"
    "        pass\n"
    "    finally:\n"
    "        sys.path.pop()\n"
    "\"\"\", {})\n";  // in a namespace of its own: __main__ stays as it is

// A Python string literal of `text`; false when it does not fit or holds what would need more than quoting.
bool quoted(const char* text, std::size_t length, char* out, std::size_t size) noexcept {
    if (length + 4 > size || memchr(text, '\'', length) != nullptr || memchr(text, '\\', length) != nullptr)
        return false;
    out[0] = '\'';
    memcpy(out + 1, text, length);
    memcpy(out + 1 + length, "'", 2);
    return true;
}

}  // namespace

void bring_python_side() noexcept {
    static std::atomic<bool> done{false};
    if (done.load(std::memory_order_relaxed)) return;
    const char* session = getenv("MSMEMSCOPE_SESSION");
    if (session == nullptr || *session == 0) return;
    const auto holds_gil = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (holds_gil == nullptr || run == nullptr || holds_gil() == 0 || done.exchange(true)) return;
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(bring_python_side), &info) == 0 || info.dli_fname == nullptr) return;
    // <directory>/msmemscope/libascend_kernel_hook.so
    const char* file = strrchr(info.dli_fname, '/');
    if (file == nullptr || file == info.dli_fname) return;
    const char* package = file - 1;
    while (package > info.dli_fname && *package != '/') --package;
    char directory[1024], code[sizeof kImport + sizeof directory];
    if (!quoted(info.dli_fname, static_cast<std::size_t>(package - info.dli_fname), directory, sizeof directory))
        return;
    snprintf(code, sizeof code, kImport, directory);
    run(code);
}

}  // namespace memscope
