// What happens when the library is loaded: with LD_PRELOAD it comes into everything a worker starts (shells,
// compilers, `tail`), so it reads two variables and, when one is set, looks through the loaded objects. A
// process that links nothing we watch is left with a patched dlsym and nothing else: no file, no thread, no
// output. The ring is made by the first event.
#include <dlfcn.h>
#include <cstdlib>

#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/settings.h"

namespace memscope {
namespace {

bool is_set(const char* name) noexcept {
    const char* text = getenv(name);
    return text != nullptr && *text != 0;
}

// A launcher that is at home in another environment may have preloaded its own installation's copy as well. The first
// copy's functions then stand in for those of the same names in the others, so it alone can be started, and by Python
// too, while a slot belongs to whoever patches it first.
bool is_first_copy() noexcept {
    static const char ours = 0;
    Dl_info here = {}, there = {};
    return dladdr(&ours, &here) == 0 || dladdr(reinterpret_cast<const void*>(&memscope_start), &there) == 0 ||
           here.dli_fbase == there.dli_fbase;
}

__attribute__((constructor)) void arm() {
    if (!is_first_copy()) return;
    if (!is_set("MSMEMSCOPE_SESSION")) {
        // From a shell that sourced `msmemscope --load-api-env`: the program will make its session itself.
        if (is_set("MSMEMSCOPE_LIB_PATH")) {
            install_hooks();
            memscope_remember();
        }
        return;
    }
    if (memscope_set_session(getenv("MSMEMSCOPE_SESSION")) != 0) return;
    if (is_set("MSMEMSCOPE_SETTINGS")) memscope_configure(getenv("MSMEMSCOPE_SETTINGS"));
    install_hooks();
    memscope_remember();
    if (g_settings.deferred == 0) memscope_start();
}

}  // namespace
}  // namespace memscope

extern "C" __attribute__((visibility("default"))) unsigned memscope_install_hooks() {
    return memscope::install_hooks();
}
extern "C" __attribute__((visibility("default"))) void memscope_remove_hooks() { memscope::remove_hooks(); }
extern "C" __attribute__((visibility("default"))) unsigned memscope_objects_looked_through() {
    return memscope::objects_looked_through();
}
extern "C" __attribute__((visibility("default"))) void memscope_describe_hooks(memscope::HookVisitor visit,
                                                                               void* context) {
    memscope::describe_hooks(visit, context);
}
