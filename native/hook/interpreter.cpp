#include "hook/interpreter.h"

#include <dlfcn.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace memscope {
namespace {

// The package lies around this library; sys.path gets it only for the import, so that nothing else of its
// site-packages comes into the program. In front, as msmemscope.pth does: a directory of the program's may have our
// name.
constexpr const char kImport[] =
    "exec(\"\"\"\n"
    "import sys\n"
    "try:\n"
    "    bootstrap = sys.modules.get('msmemscope.collect.rank.bootstrap')\n"
    "    if bootstrap is None:\n"
    "        home = %s\n"
    "        sys.path.insert(0, home)\n"
    "        try:\n"
    "            import msmemscope.collect.rank.bootstrap as bootstrap\n"
    "        finally:\n"
    "            sys.path.remove(home)\n"
    "    %s\n"
    "except Exception:\n"
    "    pass\n"
    "\"\"\", {})\n";  // in a namespace of its own: __main__ stays as it is

struct Interpreter {
    std::atomic<int (*)()> is_initialized, holds_gil;
    std::atomic<int (*)(const char*)> run;
    std::atomic<int (*)(int (*)(void*), void*)> add_pending_call;  // set last
};
Interpreter g_interpreter = {};

template <typename Function>
void find(std::atomic<Function>& function, const char* name) noexcept {
    function.store(reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name)), std::memory_order_release);
}

// A Python string literal of `text`; false when it does not fit or holds what would need more than quoting.
bool quoted(const char* text, std::size_t length, char* out, std::size_t size) noexcept {
    if (length + 4 > size || memchr(text, '\'', length) != nullptr || memchr(text, '\\', length) != nullptr)
        return false;
    out[0] = '\'';
    memcpy(out + 1, text, length);
    memcpy(out + 1 + length, "'", 2);
    return true;
}

// Runs `statement` where `bootstrap` is our module. The GIL is held.
void run_in_bootstrap(const char* statement) noexcept {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(bring_python_side), &info) == 0 || info.dli_fname == nullptr) return;
    // <directory>/msmemscope/libascend_kernel_hook.so
    const char* file = strrchr(info.dli_fname, '/');
    if (file == nullptr || file == info.dli_fname) return;
    const char* package = file - 1;
    while (package > info.dli_fname && *package != '/') --package;
    char directory[1024], code[sizeof kImport + sizeof directory + 64];
    if (!quoted(info.dli_fname, static_cast<std::size_t>(package - info.dli_fname), directory, sizeof directory))
        return;
    snprintf(code, sizeof code, kImport, directory, statement);
    g_interpreter.run.load(std::memory_order_relaxed)(code);
}

bool has_session() noexcept {
    const char* session = getenv("MSMEMSCOPE_SESSION");
    return session != nullptr && *session != 0;
}

bool is_up() noexcept {
    return g_interpreter.add_pending_call.load(std::memory_order_acquire) != nullptr &&
           g_interpreter.is_initialized.load(std::memory_order_relaxed)() != 0;
}

// Whether Python code may run here and now.
bool holds_gil() noexcept { return is_up() && g_interpreter.holds_gil.load(std::memory_order_relaxed)() != 0; }

constexpr char kAttach[] = "bootstrap.allocator_found()";

int attach_now(void*) noexcept {
    run_in_bootstrap(kAttach);
    return 0;
}

}  // namespace

void find_interpreter() noexcept {
    Interpreter& found = g_interpreter;
    if (found.add_pending_call.load(std::memory_order_acquire) != nullptr) return;
    find(found.is_initialized, "Py_IsInitialized");
    find(found.holds_gil, "PyGILState_Check");
    find(found.run, "PyRun_SimpleString");
    if (found.is_initialized.load() != nullptr && found.holds_gil.load() != nullptr && found.run.load() != nullptr)
        find(found.add_pending_call, "Py_AddPendingCall");
}

void bring_python_side() noexcept {
    static std::atomic<bool> done{false};
    if (done.load(std::memory_order_relaxed) || !has_session()) return;
    find_interpreter();
    if (holds_gil() && !done.exchange(true)) run_in_bootstrap("pass");
}

void attach_python() noexcept {
    static std::atomic<bool> done{false};
    if (done.load(std::memory_order_relaxed) || !has_session()) return;
    find_interpreter();
    if (holds_gil() && !done.exchange(true)) run_in_bootstrap(kAttach);
}

void ask_python_to_attach() noexcept {
    if (is_up() && has_session()) g_interpreter.add_pending_call.load(std::memory_order_relaxed)(attach_now, nullptr);
}

}  // namespace memscope
